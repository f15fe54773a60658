"""A producer of the demo: it sends rows of sales until its standard input ends.

After each call it writes into a file how many rows were accepted so far. So somebody who kills it
knows what has to be in the log.
"""

import os
import random
import select
import sys

import commitlog

FRUIT = {"apple": 0.5, "banana": 0.25, "mango": 1.5, "pear": 0.75}
ROWS = 20
PAUSE_SECONDS = 0.02


def main() -> None:
    """The process: `python producing.py STORE NUMBER FILE`."""
    store, number, file = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    said = os.open(file, os.O_WRONLY | os.O_CREAT, 0o600)
    accepted = 0
    with commitlog.Producer(store) as producer:
        while not select.select([sys.stdin], [], [], PAUSE_SECONDS)[0]:
            fruits = random.choices([*FRUIT], k=ROWS)
            producer.send_rows(
                "sales",
                [
                    {"producer": number, "sequence": accepted + row, "fruit": fruit, "price": FRUIT[fruit]}
                    for row, fruit in enumerate(fruits)
                ],
            )
            accepted += ROWS
            os.pwrite(said, b"%d" % accepted, 0)
        producer.flush()


if __name__ == "__main__":
    main()
