"""configs/Containerfile and configs/kubernetes, as far as this goes without an engine.

The command of the image runs as the first process of namespaces of its own, with the /dev/shm of a
container.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import orjson
import pytest
import typer.main
import yaml

from commitlog import Reader
from commitlog.cli.app import app
from commitlog.config import Config
from commitlog.config_file import load_config

ROOT = Path(__file__).parents[2]
IMAGE = (ROOT / "configs/Containerfile").read_text()
MANIFEST = list(yaml.safe_load_all((ROOT / "configs/kubernetes/store/store.yaml").read_text()))
STAGES_STOP_SECONDS = 4 * Config().supervisor.stop_timeout_ms / 1000
COMMITLOG = str(Path(sys.executable).with_name("commitlog"))
UNITS = {"Mi": 1 << 20, "Gi": 1 << 30}


def pod() -> Any:
    (found,) = (part["spec"]["template"]["spec"] for part in MANIFEST if part["kind"] == "StatefulSet")
    return found


def size(text: str) -> int:
    return int(text[:-2]) * UNITS[text[-2:]]


def image_user() -> int:
    return int(re.search(r"useradd --uid (\d+)", IMAGE)[1])  # type: ignore[index]


def commands() -> list[list[str]]:
    """All commands of ours in the manifest, also those inside a shell's text."""
    (stages,) = pod()["initContainers"]
    found = [stages["command"]]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        words = stages[probe]["exec"]["command"]
        found.append(words[2].partition(";")[0].split() if words[:2] == ["sh", "-c"] else words)
    return found


def test_the_manifest_has_what_a_store_needs() -> None:
    """Memory for /dev/shm, time to drain, one owner, one user, and the same mounts for all."""
    (stateful,) = (part["spec"] for part in MANIFEST if part["kind"] == "StatefulSet")
    spec = pod()
    assert stateful["replicas"] == 1
    assert spec["terminationGracePeriodSeconds"] > STAGES_STOP_SECONDS
    assert spec["securityContext"]["runAsUser"] == image_user()
    containers = spec["initContainers"] + spec["containers"]
    mounts = [{mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]} for container in containers]
    assert all(mount == {"data": "/data", "shm": "/dev/shm"} for mount in mounts)
    (shm,) = spec["volumes"]
    assert shm["emptyDir"]["medium"] == "Memory"
    for container in containers:
        assert size(container["resources"]["limits"]["memory"]) >= size(shm["emptyDir"]["sizeLimit"]) + (512 << 20)
    assert {claim["metadata"]["name"] for claim in stateful["volumeClaimTemplates"]} == {"data"}


@pytest.mark.parametrize("words", commands(), ids=lambda words: words[1])
def test_the_manifest_names_commands_that_there_are(words: list[str]) -> None:
    """On the store of the image, with the image's configuration."""
    assert words[0] == "commitlog"
    assert words[-1] == "/data/store"
    assert "--config" not in words or f" {words[words.index('--config') + 1]}\n" in IMAGE
    group = typer.main.get_command(app)
    context = group.make_context("commitlog", words[1:], resilient_parsing=True)
    command = group.get_command(context, words[1])  # type: ignore[attr-defined]
    assert command is not None
    assert str(command.make_context(words[1], words[2:], parent=context).params["store"]) == "/data/store"


def test_the_manifest_of_a_served_store() -> None:
    """The server sees the store as the stages do, and its command names files that are mounted."""
    service, stateful = yaml.safe_load_all((ROOT / "configs/kubernetes/serve/serve.yaml").read_text())
    spec = stateful["spec"]["template"]["spec"]
    (stages,), (program, server) = spec["initContainers"], spec["containers"]
    assert stages["command"] == pod()["initContainers"][0]["command"]
    mounts = {mount["name"]: mount["mountPath"] for mount in server["volumeMounts"]}
    for container in (stages, program):
        assert {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}.items() <= mounts.items()
    words = server["command"]
    group = typer.main.get_command(app)
    context = group.make_context("commitlog", words[1:], resilient_parsing=True)
    params = group.get_command(context, "serve").make_context("serve", words[2:], parent=context).params  # type: ignore[attr-defined]
    assert list(map(str, params["store"])) == ["/data/store"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for option, volume in (("certificate", "tls"), ("key", "tls"), ("tokens", "tokens")):
        assert str(params[option].parent) == mounts[volume]
        assert not volumes[volume]["secret"]["defaultMode"] & 0o022  # `serve` refuses what others may write
    (port,) = service["spec"]["ports"]
    assert params["listen"] == f"0.0.0.0:{port['port']}"
    assert server["ports"][0]["containerPort"] == port["port"]


def kustomized(folder: str) -> list[Any]:
    """What a real kustomize makes of a folder of configs/kubernetes."""
    tools = (["kustomize", "build"], ["kubectl", "kustomize"])
    words = next((words for words in tools if shutil.which(words[0])), None)
    if words is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    place = ROOT / "configs/kubernetes" / folder
    done = subprocess.run([*words, place], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@pytest.mark.parametrize("folder", ["store", "serve"])
def test_a_base_is_its_manifest(folder: str) -> None:
    """So `apply -k` and `apply -f` do the same."""
    manifest = list(yaml.safe_load_all((ROOT / f"configs/kubernetes/{folder}/{folder}.yaml").read_text()))
    by_kind = {part["kind"]: part for part in kustomized(folder)}
    assert by_kind == {part["kind"]: part for part in manifest}


def test_the_example_of_an_overlay() -> None:
    """It changes names, images, sizes and the configuration, and nothing else."""
    by_kind = {part["kind"]: part for part in kustomized("example")}
    config, service, stateful = by_kind["ConfigMap"], by_kind["Service"], by_kind["StatefulSet"]
    load_config(tomllib.loads(config["data"]["commitlog.toml"]))
    spec = stateful["spec"]["template"]["spec"]
    (stages,), (program,) = spec["initContainers"], spec["containers"]
    assert stages["command"] == pod()["initContainers"][0]["command"]
    assert stages["startupProbe"] == pod()["initContainers"][0]["startupProbe"]
    mounted = {mount["mountPath"]: mount for mount in stages["volumeMounts"]}
    assert mounted[stages["command"][3]]["subPath"] in config["data"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert volumes["config"]["configMap"]["name"] == config["metadata"]["name"]
    for container in (stages, program):
        limit = size(container["resources"]["limits"]["memory"])
        assert limit >= size(volumes["shm"]["emptyDir"]["sizeLimit"]) + (512 << 20)
        assert {"/data", "/dev/shm"} <= {mount["mountPath"] for mount in container["volumeMounts"]}
        assert "registry.example.com/" in container["image"]
    labels = stateful["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == stateful["spec"]["selector"]["matchLabels"] == labels
    assert stateful["spec"]["serviceName"] == service["metadata"]["name"] == labels["app"]


def namespaces() -> list[str]:
    """Words in front of a command that runs as a container's first process, with 64 MiB of shm."""
    words = ["unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child"]
    return [*words, "sh", "-c", 'mount -t tmpfs -o size=64m,mode=0777 shm /dev/shm; exec "$@"', "sh"]


def image_command(store: Path) -> list[str]:
    """ENTRYPOINT and CMD, with the paths of this machine."""
    entry, arguments = (
        orjson.loads(found[1])
        for word in ("ENTRYPOINT", "CMD")
        if (found := re.search(rf"^{word} (\[.*\])$", IMAGE, re.M))
    )
    here = {
        "commitlog": COMMITLOG,
        "/etc/commitlog.toml": str(ROOT / "configs/default.toml"),
        "/data/store": str(store),
    }
    return [here.get(word, word) for word in entry + arguments]


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make all of these namespaces")
def test_the_image_s_command_as_a_container_s_first_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM drains it, and what another process of the container sent is on the disk.

    Its /dev/shm is gone then.
    """
    monkeypatch.delenv("COMMITLOG_SHM_DIR")
    tried = subprocess.run([*namespaces(), "true"], capture_output=True, text=True)
    if tried.returncode:
        pytest.skip(f"no namespaces here: {tried.stderr.strip()}")
    store = tmp_path / "store"
    words = [*namespaces(), *image_command(store)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as container:
        try:
            assert container.stdout is not None
            assert container.stdout.readline().startswith(f"running {store}")
            first = Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text().strip()
            inside = ["nsenter", "--target", first, "--mount", "--pid", "--ipc"]
            produce = [*inside, COMMITLOG, "produce", str(store), "orders"]
            sent = subprocess.run(produce, input="apple\npear\n", capture_output=True, text=True)
            assert sent.stderr == "2 messages sent to orders, all on disk\n"
            os.kill(int(first), signal.SIGTERM)
            assert container.stdout.read().endswith("stopped, all is on disk\n")
            assert container.wait() == 0
        finally:
            container.kill()
    with Reader(store, topic="orders") as reader:
        assert [message.value for message in reader] == [b"apple", b"pear"]
