"""The image's files say what they should: Dockerfile, lock files, compose file and Apptainer definition."""

import os
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from ovo_clinic.errors import UserError
from ovo_clinic.tracking.addresses import permitted
from tests.docker_steps import Stage, instructions, pairs, stages
from tests.servers import free_port, running

REPOSITORY = Path(__file__).resolve().parent.parent
DOCKER = REPOSITORY / "docker"
LOCKS = ("requirements.lock", "requirements-cpu.lock", "build.lock")
OF_CUDA = re.compile("cuda-|nvidia-|triton$")
PINNED = re.compile(r"\S+:[\w.-]*\d[\w.-]*")


def of_the_dockerfile(**given: str) -> list[Stage]:
    return stages((DOCKER / "Dockerfile").read_text(), given)


def pins(text: str) -> dict[str, str]:
    """Versions by name."""
    found = re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def hashes(name: str) -> dict[str, set[str]]:
    """Hashes by `name==version` of a lock file; every line of it has to be understood."""
    found: dict[str, set[str]] = {}
    for line in (DOCKER / name).read_text().splitlines():
        if requirement := re.fullmatch(r"([\w.-]+==\S+) \\", line):
            found[requirement[1]] = set()
        else:
            one = re.fullmatch(r"    --hash=sha256:([0-9a-f]{64})( \\)?", line)
            assert one, line
            found[list(found)[-1]].add(one[1])
    return found


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    return found


def test_instructions_are_read_as_docker_reads_them() -> None:
    text = """# a comment
ARG BASE=debian:12
FROM ${BASE} AS first
RUN one && \\
    # a comment between
    two
COPY --from=first /a b /c/
FROM ${BASE}
ENV A=1 B="two words"
"""
    assert [(each.keyword, each.value) for each in instructions(text)][2:4] == [
        ("RUN", "one && two"),
        ("COPY", "/a b /c/"),
    ]
    first, second = stages(text, {"BASE": "debian:13"})
    assert (first.base, first.name, second.base) == ("debian:13", "first", "debian:13")
    assert first.instructions[1].flags == {"from": "first"}
    assert pairs(second.values("ENV")[0]) == {"A": "1", "B": "two words"}


def test_a_small_last_stage_runs_as_nobody_in_particular_from_a_pinned_base() -> None:
    build, run = of_the_dockerfile()
    assert PINNED.fullmatch(build.base) and run.base == build.base
    assert {stage.base for stage in of_the_dockerfile(BASE="nvidia/cuda:1-base")} == {"nvidia/cuda:1-base"}
    assert run.values("USER") == ["ovo_clinic"] and "useradd --uid 10001" in run.values("RUN")[0]
    for step in run.values("RUN"):
        installed = re.findall(r"apt-get install[\w\s-]*?--no-install-recommends ([\w\s.-]+?) *(?:&|$)", step)
        assert installed == ["python3"] and "pip" not in step
    assert [each.flags for each in run.instructions if each.keyword == "COPY"] == [{"from": "build"}]
    assert run.values("ENTRYPOINT") == ['["ovo-clinic"]']
    (volume,) = run.values("VOLUME")
    variables = pairs(run.values("ENV")[0])
    assert Path(variables["OVO_CLINIC_HOME"]).is_relative_to(volume)
    assert variables["MPLCONFIGDIR"].startswith("/tmp/")


def test_no_program_of_an_image_reports_on_its_use(services: dict[str, Any]) -> None:
    """The server of the compose file never loads ovo_clinic, which says so elsewhere."""
    silent = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true", "RAY_USAGE_STATS_ENABLED": "0"}
    assert silent.items() <= pairs(of_the_dockerfile()[-1].values("ENV")[0]).items()
    environment = (DOCKER / "ovo_clinic.def").read_text().partition("%environment")[2].partition("%runscript")[0]
    assert silent.items() <= dict(re.findall(r"^ +export (\w+)=(.*)$", environment, flags=re.MULTILINE)).items()
    assert not [name for service in services.values() for name in silent if name in service.get("environment", {})]


def test_nothing_is_installed_that_no_hash_names_and_nothing_is_fetched_otherwise() -> None:
    steps = [step for stage in of_the_dockerfile() for step in stage.values("RUN")]
    installs = [part for step in steps for part in step.split("&&") if "pip install" in part or "pip wheel" in part]
    assert len(installs) == 4
    for install in installs:
        locked = "--require-hashes" in install and "--only-binary :all:" in install
        assert locked or ("--no-index" in install and "--no-deps" in install), install
    every = [each for stage in of_the_dockerfile() for each in stage.instructions]
    assert not [each for each in every if each.keyword == "ADD" or re.search("curl|wget|https?:", each.value)]


def settings(node: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, however deep."""
    if isinstance(node, dict):
        yield from node.items()
    for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        yield from settings(child)


def test_no_secret_stands_in_a_file() -> None:
    compose = yaml.safe_load((DOCKER / "compose.yaml").read_text())
    secret = re.compile("password|secret|token|credential|key", re.IGNORECASE)
    given = {key: value for key, value in settings(compose) if secret.search(key) and isinstance(value, str)}
    assert given == {"POSTGRES_PASSWORD_FILE": "/run/secrets/database_password"}
    (source,) = compose["secrets"].values()
    assert re.fullmatch(r"\$\{\w+:\?[^}]+\}", source["file"])  # no default
    for stage in of_the_dockerfile():
        assert not [value for keyword in ("ARG", "ENV") for value in stage.values(keyword) if secret.search(value)]
    assert not secret.search((DOCKER / "ovo_clinic.def").read_text())


def test_the_build_sees_nothing_but_what_it_copies() -> None:
    lines = [line for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert lines[0] == "*"
    allowed = {line.removeprefix("!") for line in lines if line.startswith("!")}
    build = of_the_dockerfile()[0]
    copied = {source for value in build.values("COPY") for source in value.split()[:-1]}
    assert {re.sub(r"docker/.*", "docker/*.lock", source) for source in copied} == allowed


@pytest.mark.parametrize("name", LOCKS)
def test_every_requirement_has_hashes_and_the_version_of_the_constraints(name: str) -> None:
    assert min(map(len, hashes(name).values())) >= 1
    locked, constrained = pins((DOCKER / name).read_text()), pins((REPOSITORY / "constraints.txt").read_text())
    unknown = {package for package in locked if package not in constrained}
    assert not [package for package in unknown if not OF_CUDA.match(package)]
    assert {package: locked[package].removesuffix("+cpu") for package in locked.keys() - unknown} == {
        package: constrained[package] for package in locked.keys() - unknown
    }


def test_the_lock_files_differ_in_cuda_alone() -> None:
    full, cpu = hashes("requirements.lock"), hashes("requirements-cpu.lock")
    differing = {name for name in full.keys() ^ cpu.keys() if not OF_CUDA.match(name.partition("==")[0])}
    assert {name.partition("+")[0] for name in differing} == {next(name for name in full if name.startswith("torch=="))}
    assert {name: full[name] for name in full.keys() & cpu.keys()} == {
        name: cpu[name] for name in full.keys() & cpu.keys()
    }
    assert any(name.startswith("nvidia-nccl") for name in full)


def test_the_lock_holds_all_that_the_installed_package_needs() -> None:
    """By the metadata of what is installed here, extras of the image included."""
    needed, waiting = set[str](), [("ovo-clinic", "postgresql"), ("ovo-clinic", "cluster")]
    seen = set[tuple[str, str]]()
    while waiting:
        package, extra = waiting.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for line in metadata.requires(package) or []:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({**default_environment(), "extra": extra}):
                needed.add(canonicalize_name(requirement.name))
                waiting += [(requirement.name, more) for more in ("", *requirement.extras)]
    assert needed - set(pins((DOCKER / "requirements-cpu.lock").read_text())) == set()
    assert len(needed) > 80


def test_apptainer_installs_what_docker_installs() -> None:
    text = (DOCKER / "ovo_clinic.def").read_text()
    build, run = of_the_dockerfile()
    assert set(re.findall(r"base=(\S+)", text)) == {build.base}
    commands = [
        part.strip().replace("${LOCK}", "requirements.lock")
        for step in build.values("RUN")
        for part in step.split("&&")
        if "pip" in part or "venv" in part
    ]
    assert len(commands) == 8
    for command in commands:
        assert re.search(rf"^\s*(.*&& )?{re.escape(command)}$", text, flags=re.MULTILINE), command
    copied = {source for value in build.values("COPY") for source in value.split()[:-1]}
    assert {source.replace("${LOCK}", "{{ lock }}") for source in copied} == set(
        re.findall(r"^    (\S.*) /build/", text, flags=re.MULTILINE)
    )


def test_services_are_confined(services: dict[str, Any]) -> None:
    networks = yaml.safe_load((DOCKER / "compose.yaml").read_text())["networks"]
    assert networks["inside"]["internal"] is True
    for name, service in services.items():
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"] and "privileged" not in service, name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert service["networks"] == (["inside", "outside"] if name == "mlflow" else ["inside"]), name
        assert "image" in service and (name != "database" or PINNED.fullmatch(service["image"]))
    assert services["database"]["user"] != "root"


def test_data_are_read_only_and_state_is_kept_in_named_volumes(services: dict[str, Any]) -> None:
    kept = yaml.safe_load((DOCKER / "compose.yaml").read_text())["volumes"]
    for name, service in services.items():
        for volume in service["volumes"]:
            if volume["type"] == "bind":
                assert volume["target"] == "/data" and volume["read_only"] is True, name
            else:
                assert volume["source"] in kept
    for name in ("app", "app-gpu"):
        assert {volume["target"] for volume in services[name]["volumes"]} == {"/data", "/home/ovo_clinic"}


def test_the_app_waits_for_its_store_and_gpus_are_asked_for_by_profile(services: dict[str, Any]) -> None:
    assert services["mlflow"]["depends_on"] == {"database": {"condition": "service_healthy"}}
    for name in ("app", "app-gpu"):
        assert services[name]["depends_on"] == {"mlflow": {"condition": "service_healthy"}}
        assert services[name]["environment"]["MLFLOW_TRACKING_URI"] == "http://mlflow:5000"
    assert all("healthcheck" in services[name] for name in ("mlflow", "database"))
    assert services["app-gpu"]["profiles"] == ["gpu"] and "deploy" not in services["app"]
    (device,) = services["app-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]


def test_the_store_beside_the_app_is_another_machine_until_it_is_allowed() -> None:
    with pytest.raises(UserError, match="--allow-remote-tracking"):
        permitted("http://mlflow:5000", False, "--tracking-uri")
    assert permitted("http://mlflow:5000", True, "--tracking-uri") == "http://mlflow:5000"


def status(url: str, host: str) -> int:
    request = urllib.request.Request(url, headers={"Host": host})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return int(reply.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


@pytest.mark.slow
def test_the_server_of_the_compose_file_starts_and_answers_to_its_name(
    services: dict[str, Any], database: str, tmp_path: Path
) -> None:
    """Its command, on a real PostgreSQL, with nothing but the places changed."""
    (command,) = services["mlflow"]["command"]
    port, password = free_port(), tmp_path / "password"
    password.write_text("made-up\n")
    for given, here in {
        "$$": "$",
        "/run/secrets/database_password": str(password),
        "postgresql+psycopg://ovo_clinic@database/ovo_clinic": database.replace("postgresql", "postgresql+psycopg", 1),
        "--host 0.0.0.0 --port 5000": f"--host 127.0.0.1 --port {port}",
        "/home/ovo_clinic/artifacts": str(tmp_path / "artifacts"),
    }.items():
        assert given in command, given
        command = command.replace(given, here)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    words = [*services["mlflow"]["entrypoint"], command]
    url = f"http://127.0.0.1:{port}"

    def ready() -> bool:
        return status(f"{url}/health", "mlflow:5000") == 200

    log = tmp_path / "log"
    with running(words, ready, log, cwd=tmp_path, env=environment, start_new_session=True):
        experiments = f"{url}/api/2.0/mlflow/experiments/search?max_results=1"
        assert status(experiments, "mlflow:5000") == 200
        assert status(experiments, "elsewhere.example") == 403
