"""Reads a Dockerfile, and carries it out without Docker: each stage is a folder, each step runs in a chroot.

Run by `docker/check.sh`, as root, on Debian with debootstrap and a network. COPY takes files as .dockerignore allows.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
ASK_USER = "import pwd, sys; found = pwd.getpwnam(sys.argv[1]); print(found.pw_uid, found.pw_gid)"


@dataclass(frozen=True)
class Instruction:
    """One instruction of a Dockerfile; `flags` are its `--name=value` words."""

    keyword: str
    value: str
    flags: dict[str, str]


@dataclass
class Stage:
    """A FROM and what follows it."""

    base: str
    name: str
    instructions: list[Instruction] = field(default_factory=list)

    def values(self, keyword: str) -> list[str]:
        return [given.value for given in self.instructions if given.keyword == keyword]


def instructions(text: str) -> list[Instruction]:
    """Without comments, lines that end in a backslash joined."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    found = []
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        keyword, _, rest = line.partition(" ")
        flags = {}
        while option := re.match(r"\s*--([a-z]+)=(\S+)", rest):
            flags[option[1]] = option[2]
            rest = rest[option.end() :]
        found.append(Instruction(keyword.upper(), rest.strip(), flags))
    return found


def stages(text: str, given: dict[str, str]) -> list[Stage]:
    """The stages, the arguments before the first FROM filled into their bases."""
    found: list[Stage] = []
    outer: dict[str, str] = {}
    for each in instructions(text):
        if each.keyword == "FROM":
            base, _, name = filled(each.value, outer).partition(" AS ")
            found.append(Stage(base, name or str(len(found))))
        elif found:
            found[-1].instructions.append(each)
        else:
            assert each.keyword == "ARG", each
            outer |= argument(each.value, given)
    return found


def argument(value: str, given: dict[str, str]) -> dict[str, str]:
    name, _, default = value.partition("=")
    return {name: given.get(name, default)}


def filled(value: str, variables: dict[str, str]) -> str:
    """With `${NAME}` replaced."""
    return re.sub(r"\$\{(\w+)\}", lambda match: variables[match[1]], value)


def pairs(value: str) -> dict[str, str]:
    """Of an ENV or a LABEL."""
    return dict(word.split("=", 1) for word in shlex.split(value))


@dataclass
class Container:
    """A root folder with the state that instructions leave.

    Attributes:
        root: of the file system.
        binds: folders of this machine that steps see, read-only.
        extra: environment of the steps alone.
    """

    root: Path
    binds: Sequence[str]
    extra: dict[str, str]
    environment: dict[str, str] = field(default_factory=lambda: {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})
    arguments: dict[str, str] = field(default_factory=dict)
    folder: str = "/"
    user: str = "root"
    entrypoint: list[str] = field(default_factory=list)

    def inside(self, path: str) -> Path:
        return self.root / str(Path(self.folder) / path).lstrip("/")

    def step(self, command: str) -> None:
        """A RUN, as the root of the stage."""
        variables = {**self.arguments, **self.extra, **self.environment}
        mounts = [f"mount --rbind /proc {self.root}/proc", f"mount --rbind /dev {self.root}/dev"]
        for bind in self.binds:
            (self.root / bind.lstrip("/")).mkdir(parents=True, exist_ok=True)
            mounts.append(f"mount --bind -o ro {bind} {self.root}{bind}")
        script = f"cd {self.folder} && {command}"
        run_chrooted(self.root, mounts, ["/bin/sh", "-c", script], variables)

    def run(self, words: list[str], volumes: dict[Path, str]) -> None:
        """The entry point as the image's user: no network, read-only root, /tmp and the volumes (folder -> path)."""
        mounts = [f"mount --bind {self.root} {self.root}", "ip link set lo up"]
        mounts += [f"mount -t tmpfs tmpfs {self.root}/tmp", f"mount --rbind /proc {self.root}/proc"]
        mounts += [f"mount --rbind /dev {self.root}/dev"]
        for source, target in volumes.items():
            path, _, mode = target.partition(":")
            mounts.append(f"mount --bind {source} {self.root}{path}")
            if mode == "ro":
                mounts.append(f"mount -o remount,bind,ro {self.root}{path}")
        mounts.append(f"mount -o remount,bind,ro {self.root}")
        inner = ["/bin/sh", "-c", f'cd {self.folder} && exec "$@"', "-", *self.entrypoint, *words]
        number, group = self.numbers()
        run_chrooted(self.root, mounts, inner, self.environment, [f"--userspec={number}:{group}"], ["--net"])

    def numbers(self) -> tuple[int, int]:
        """The user's and the group's number."""
        words = ["chroot", str(self.root), "/usr/bin/python3", "-c", ASK_USER, self.user]
        number, group = subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()
        return int(number), int(group)


def run_chrooted(
    root: Path,
    mounts: list[str],
    words: list[str],
    environment: dict[str, str],
    options: Sequence[str] = (),
    spaces: Sequence[str] = (),
) -> None:
    """Runs words in a root, with mounts that end with the process as they lie in a name space of its own."""
    inner = shlex.join(["chroot", *options, str(root), *words])
    script = " && ".join([*mounts, f"exec {inner}"])
    variables = {**environment, "PATH": "/usr/sbin:" + environment["PATH"]}
    subprocess.run(["unshare", "--mount", *spaces, "/bin/sh", "-c", script], check=True, env=variables)


def allowed(folder: Path) -> set[str]:
    """Names at the top of a build context that .dockerignore lets through, one that begins with `!` a line."""
    lines = (folder / ".dockerignore").read_text().splitlines()
    return {line[1:].split("/")[0] for line in lines if line.startswith("!")}


def copy(container: Container, instruction: Instruction, roots: dict[str, Path]) -> None:
    """A COPY."""
    *sources, target = filled(instruction.value, container.arguments).split()
    origin = roots.get(instruction.flags.get("from", ""), REPOSITORY)
    for source in sources:
        if origin == REPOSITORY:
            assert source.split("/")[0] in allowed(REPOSITORY), f"{source} is kept out by .dockerignore"
        path, place = origin / source.lstrip("/"), container.inside(target)
        if path.is_dir():
            ignored = shutil.ignore_patterns("__pycache__") if origin == REPOSITORY else None
            shutil.copytree(path, place, symlinks=True, dirs_exist_ok=True, ignore=ignored)
        else:
            destination = place / path.name if target.endswith("/") else place
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, destination)


def carry_out(stage: Stage, container: Container, given: dict[str, str], roots: dict[str, Path]) -> None:
    """All instructions of a stage."""
    for each in stage.instructions:
        started = time.perf_counter()
        value = each.value
        if each.keyword == "RUN":
            container.step(value)
        elif each.keyword == "COPY":
            copy(container, each, roots)
        elif each.keyword == "ARG":
            container.arguments |= argument(value, given)
        elif each.keyword == "ENV":
            container.environment |= pairs(value)
        elif each.keyword == "WORKDIR":
            container.folder = value
            container.inside("").mkdir(parents=True, exist_ok=True)
        elif each.keyword == "USER":
            container.user = value
        elif each.keyword == "ENTRYPOINT":
            container.entrypoint = json.loads(value)
        else:
            assert each.keyword in ("LABEL", "VOLUME", "CMD"), each.keyword
        print(f"[{stage.name}] {each.keyword} {value[:90]} ({time.perf_counter() - started:.0f} s)", flush=True)


def bootstrapped(base: str, work: Path) -> Path:
    """A folder with the system that a base `debian:SUITE-...` names, made once."""
    found = re.fullmatch(r"debian:([a-z]+)\S*", base)
    assert found, f"{base}: only a Debian can be put up here"
    root = work / found[1]
    if not root.is_dir():
        partial = work / f"{found[1]}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        subprocess.run(
            ["unshare", "--mount", "debootstrap", "--variant=minbase", found[1], str(partial)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        partial.rename(root)
    return root


def size(folder: Path) -> float:
    """In GB."""
    done = subprocess.run(["du", "--summarize", "--bytes", str(folder)], check=True, capture_output=True, text=True)
    return int(done.stdout.split()[0]) / 1e9


def build(work: Path, given: dict[str, str], binds: Sequence[str], extra: dict[str, str]) -> Container:
    """The last stage's container."""
    roots: dict[str, Path] = {}
    container = None
    for stage in stages((REPOSITORY / "docker" / "Dockerfile").read_text(), given):
        root = work / "stages" / stage.name
        shutil.rmtree(root, ignore_errors=True)
        subprocess.run(["cp", "--archive", str(bootstrapped(stage.base, work)), str(root)], check=True)
        shutil.copy("/etc/resolv.conf", root / "etc" / "resolv.conf")
        roots[stage.name] = root
        container = Container(root, binds, extra)
        carry_out(stage, container, given, roots)
    assert container is not None
    return container


def try_out(container: Container, work: Path) -> None:
    """Synthetic raw files, prepared from a read-only /data, and the demo; all without a network."""
    home, data = work / "home", work / "data"
    for folder in (home, data):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
    os.chown(home, *container.numbers())
    at_home = {home: container.folder}
    container.run(["synth", "eicu", "--out", "raw", "--patients", "600"], at_home)
    (home / "raw").rename(data / "eicu")
    with_data = {**at_home, data: "/data:ro"}
    container.run(["prepare", "eicu_mortality_24h", "--raw", "/data/eicu"], with_data)
    started = time.perf_counter()
    container.run(["demo", "--patients", "600", "--seeds", "1"], with_data)
    print(f"demo took {time.perf_counter() - started:.0f} s; no network, read-only root and data, not as root")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder for the roots: some GB")
    parser.add_argument("--build-arg", action="append", default=[], metavar="NAME=VALUE", help="as for docker build")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE", help="of the RUN steps")
    parser.add_argument("--bind", action="append", default=[], metavar="DIR", help="folder that the RUN steps see")
    asked = parser.parse_args()
    work = asked.work.resolve()
    (work / "stages").mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    given, extra = (dict(pair.split("=", 1) for pair in pairs) for pairs in (asked.build_arg, asked.env))
    container = build(work, given, asked.bind, extra)
    took = time.perf_counter() - started
    print(f"built in {took:.0f} s; {size(container.root):.2f} GB, of it {size(container.root / 'opt'):.2f} GB in /opt")
    try_out(container, work)


if __name__ == "__main__":
    main()
