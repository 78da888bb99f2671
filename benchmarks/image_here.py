"""This script makes the image of `launch/Dockerfile` without a container engine, and starts it as an engine would.

    python benchmarks/image_here.py FOLDER          (as root, with debootstrap and network; five to twenty minutes)

A folder stands for the image. Debian's packages stand in for Ubuntu's and NVIDIA's, Python 3.11 for 3.12, and the CPU
builds for those of GPUs. Each instruction of the file is carried out in the folder. Then the entry point is started as
a user who has a number and no name, on a root that can only be read, but for the two volumes and /tmp. Prints where
such a user could write, and whether a training run on two ranks leaves its report. `IMAGE_MOUNTS=/a:/b` names folders
of this machine that installing needs, such as a mirror of packages.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IMAGE, LEFT_OUT = ROOT / "launch" / "Dockerfile", ROOT / "launch" / "Dockerfile.dockerignore"
STAND_INS = {"python3.12": "python3.11", "openssh-client": "openssh-client libnuma1", "GRPO_KIND=gpu": "GRPO_KIND=cpu"}
USER = "4242:4242"
TRAIN = ("launch", "experiment=tiny", "num_steps=2", "hardware.ranks_per_node=2", "output_dir=runs/tiny")


def instructions() -> Iterator[tuple[str, str]]:
    """Yields the instructions of the file, as (word, rest), with the stand-ins in place."""
    text = "\n".join(line for line in IMAGE.read_text().splitlines() if not line.startswith("#"))
    for name, other in STAND_INS.items():
        text = text.replace(name, other)
    for line in text.replace("\\\n", " ").splitlines():
        if line.strip():
            word, _, rest = line.partition(" ")
            yield word, rest.strip()


def within(image: Path, script: str, environment: dict[str, str], mounts: Sequence[str], user: str = "0:0") -> int:
    """Runs a shell's script in the image, with mounts of its own that end with it, and returns its exit code."""
    inner = f"cd {environment['PWD']} && {script}"
    chroot = ["chroot", f"--userspec={user}", str(image), "/bin/sh", "-c", inner]
    kernel = [f"mount --rbind /{name} {image}/{name}" for name in ("dev", "sys")] + [f"mount -t proc proc {image}/proc"]
    commands = [*mounts, *kernel, f"exec {shlex.join(chroot)}"]
    words = ["unshare", "--mount", "--pid", "--fork", "/bin/sh", "-ec", "\n".join(commands)]
    return subprocess.run(words, env=environment).returncode


def build(image: Path) -> tuple[dict[str, str], list[str]]:
    """Carries out the instructions in the folder, and returns the image's environment and its entry point."""
    own = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "UV_"))}
    folders = ["/etc/resolv.conf", *filter(None, os.environ.get("IMAGE_MOUNTS", "").split(":"))]
    mounts = []
    for folder in folders:
        target = image / folder[1:]
        target.mkdir(parents=True, exist_ok=True) if Path(folder).is_dir() else target.touch()
        mounts.append(f"mount --bind {folder} {target}")
    environment, entry = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "PWD": "/"}, []
    for word, rest in instructions():
        print(word, rest[:100], flush=True)
        if word == "ENV":
            known = {f"${name}": value for name, value in environment.items()}
            for name, value in (part.split("=", 1) for part in shlex.split(rest)):
                environment[name] = ":".join(known.get(part, part) for part in value.split(":"))
        elif word == "WORKDIR":
            environment["PWD"] = rest
            (image / rest[1:]).mkdir(parents=True, exist_ok=True)
        elif word == "COPY":
            copy = f"tar -c --exclude-from={LEFT_OUT} . | tar -x --no-same-owner -C {image}{environment['PWD']}"
            subprocess.run(copy, shell=True, cwd=ROOT, check=True)
        elif word == "RUN" and within(image, rest, environment | own, mounts):
            sys.exit(f"this instruction failed: {word} {rest}")
        elif word == "ENTRYPOINT":
            entry = rest.strip("[]").replace('"', "").split(", ")
    return environment, entry


def main(folder: Path) -> None:
    image = folder / "image"
    if not (image / "etc").exists():
        sites = subprocess.run(["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True)
        words = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", str(image)]
        subprocess.run([*words, sites.stdout.split()[0]], check=True)
    environment, entry = build(image)
    elsewhere = " -o ".join(f"-path {name}" for name in ("/proc", "/dev", "/sys"))
    find = rf"find / -xdev \( {elsewhere} \) -prune -o -xdev -writable ! -type l -print 2>/dev/null"
    print("a user could write below:", flush=True)
    within(image, f"{find} | head -n 20", environment, [], USER)
    shared = [f"mount -t tmpfs -o mode=1777 tmpfs {image}/{name}" for name in ("tmp", "cache", "grpo/runs")]
    readable = [f"mount --bind {image} {image}", f"mount -o remount,ro,bind {image}", *shared]
    for words in (("doctor",), TRAIN):
        script = f"{shlex.join([*entry, *words])} && ls -R runs | head -n 20"
        print(shlex.join(words), "ended with exit code", within(image, script, environment, readable, USER), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
