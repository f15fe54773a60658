"""As many kills as you like, at random: `scripts/torture --kills 1000 --seed 7`.

Stores follow one another, 60 kills each, written in each of the three ways in turn; after each the account is made. The
seed gives the same plan again, though never the same moments.
"""

from __future__ import annotations

import argparse
import logging
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from shm.layout import STAGES
from tests.crash.scene import WAYS, Scene

KILLS_A_STORE = 60


def one_store(directory: Path, chance: random.Random, kills: int, way: str) -> tuple[Counter[str], int]:
    """That many kills at least, then the account. Returns what was killed, and how many messages there are."""
    with Scene(directory, chance, way, writers=chance.choice((1, 2, 3))) as scene:
        while sum(scene.kills.values()) < kills:
            scene.goes_on(chance.randrange(1, 60))
            what = chance.random()
            if what < 0.6:
                scene.kill_stages(chance.sample(STAGES, chance.choice((1, 1, 2, 3, 4))))
            elif what < 0.8:
                scene.kill_writer()
            elif what < 0.9:
                scene.kill_supervisor(chance.sample((*STAGES, "producer"), chance.choice((0, 1, 1, 2))))
            else:
                scene.kill_everything()
        scene.goes_on()
        messages = scene.finish()
        return scene.kills, messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="how many at least (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32), help="of the plan (default: a new one)")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)
    logging.getLogger("commitlog").setLevel(logging.ERROR)  # deaths are what this is about
    print(f"seed {arguments.seed}, {arguments.kills} kills", flush=True)
    killed: Counter[str] = Counter()
    messages = stores = 0
    began = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="commitlog-torture-"))
    while sum(killed.values()) < arguments.kills:
        directory = base / str(stores)
        wanted = min(KILLS_A_STORE, arguments.kills - sum(killed.values()))
        try:
            kills, found = one_store(directory, chance, wanted, tuple(WAYS)[stores % len(WAYS)])
        except BaseException as error:
            print(
                f"\nstore {stores} of seed {arguments.seed}, kept in {directory}: {error}", file=sys.stderr, flush=True
            )
            raise
        killed += kills
        messages, stores = messages + found, stores + 1
        print(f"store {stores}: {sum(killed.values())} kills, {messages:,} messages, all there", flush=True)
        shutil.rmtree(directory)
    base.rmdir()
    total = sum(killed.values())
    by_role = ", ".join(f"{role} {count}" for role, count in sorted(killed.items()))
    print(f"{total} kills ({by_role}) in {time.monotonic() - began:.0f} s; {messages:,} messages, none lost or doubled")
    print(f"bound: with 95 % confidence fewer than {3 / total:.2%} of kills lose anything (3/n, n = {total})")


if __name__ == "__main__":
    main()
