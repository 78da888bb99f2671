"""These tests run launch/setup.sh with stand-ins for nvidia-smi, Python and uv, up to where it would install."""

import hashlib
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    "bash",
    "cat",
    "chmod",
    "cut",
    "dirname",
    "env",
    "grep",
    "mkdir",
    "mktemp",
    "rm",
    "sha256sum",
    "sleep",
    "sort",
    "tail",
)
# A Python that fits and makes no environment, and one that does not fit.
SHELL, FAILS = "#!/usr/bin/env bash\n", 'echo "${0##*/} $*" >> "$CALLS"; exit 7'
FITS, OLD = (f"{SHELL}[[ $1 == -c ]] || {{ {FAILS}; }}\n{answer}\n" for answer in ("exit 0", "exit 1"))
# A Python that makes an environment, whose own Python loads no library named LACKING and finds no torch by pip.
MAKES = (
    SHELL
    + """[[ $1 == -m ]] || exit 0
mkdir -p $3/bin
printf '#!/usr/bin/env bash\necho "uv $*" >> "$CALLS"; exit 1\n' > $3/bin/uv
printf '#!/usr/bin/env bash\n[[ $* != *${LACKING:-torch==}* ]]\n' > $3/bin/python
chmod +x $3/bin/uv $3/bin/python
"""
)
H100 = (["580.65.06"], ["9.0"])


@pytest.fixture
def machine(tmp_path):
    """Returns a function that runs setup.sh where only `programs` (name: script) and a few tools are on the PATH, and
    where nvidia-smi prints `drivers` and `capabilities`. It returns the run, and what each program was called with."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in TOOLS:
        (programs / name).symlink_to(shutil.which(name))

    def run(drivers=(), capabilities=(), scripts=(), **variables):
        answers = [
            f"[[ $1 != *{asked}* ]] || {{ {' '.join(f'echo {line}; sleep 0.02;' for line in lines)} exit 0; }}"
            for asked, lines in (("driver_version", drivers), ("compute_cap", capabilities))
            if lines
        ]
        smi = SHELL + "\n".join([*answers, "echo it has failed; exit 9"])
        for name, script in {"nvidia-smi": smi, "gcc": OLD, **dict(scripts)}.items():
            (programs / name).unlink(missing_ok=True)
            if script:
                (programs / name).write_text(script)
                (programs / name).chmod(0o755)
        calls = tmp_path / "calls"
        calls.write_text("")
        environment = {"PATH": str(programs), "GRPO_VENV": str(tmp_path / "made"), "CALLS": str(calls)}
        done = subprocess.run(
            ["bash", "launch/setup.sh"], cwd=ROOT, env=environment | variables, capture_output=True, text=True
        )
        return done, calls.read_text().splitlines()

    return run


def refused(done):
    """Returns the one line with which setup.sh has refused to go on."""
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    return line.removeprefix("setup: ")


@pytest.mark.parametrize(
    ("drivers", "kind", "variables"),
    [
        (["580.65.06"] * 8, "gpu", {}),
        ([], "cpu", {}),
        (["535.54.03"], "cpu", {"GRPO_KIND": "cpu"}),
        ([], "gpu", {"GRPO_KIND": "gpu"}),
        # With NVIDIA's package for compatibility an old driver runs CUDA 13.
        (["570.86.10"], "gpu", {"GRPO_KIND": "gpu"}),
    ],
)
def test_builds_for_gpus_are_installed_where_their_driver_can_run_them(drivers, kind, variables, machine, tmp_path):
    files = [f"launch/requirements-{kind}.txt", "launch/setup.sh", "pyproject.toml"]
    wanted = hashlib.sha256(b"".join((ROOT / file).read_bytes() for file in files))
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / ".installed").write_text(wanted.hexdigest())
    done, calls = machine(drivers, **variables)
    assert (done.returncode, done.stdout, done.stderr, calls) == (0, "", "", [])


def test_an_old_driver_is_reported_before_anything_is_installed(machine):
    done, calls = machine(["535.54.03", "535.54.03"], ["9.0"], {"python3.11": FITS})
    assert refused(done).startswith(
        "the NVIDIA driver 535.54.03 is too old for the pinned CUDA 13 wheels, which need 580 or newer"
    )
    assert (done.stdout, calls) == ("", [])


@pytest.mark.parametrize(
    ("found", "taken"),
    [
        ({"python3.11": FITS, "python3.12": FITS}, "python3.11"),
        ({"python3.11": OLD, "python3.12": FITS, "python3.13": FITS}, "python3.12"),
        ({"python3.13": FITS}, "python3.13"),
    ],
)
def test_the_first_python_that_makes_environments_is_taken(found, taken, machine, tmp_path):
    done, calls = machine(scripts=found)
    assert done.returncode == 7 and calls == [f"{taken} -m venv {tmp_path}/made"]


@pytest.mark.parametrize(
    ("free", "kind", "needed"), [(4 << 20, "cpu", None), ((4 << 20) - 1, "cpu", 4), (9 << 20, "gpu", 14)]
)
def test_a_full_disk_is_reported_before_anything_is_installed(free, kind, needed, machine, tmp_path):
    disk = f"{SHELL}echo Filesystem 1024-blocks Used Available Capacity Mounted\necho /dev/vda 9 9 {free} 64% /"
    done, calls = machine(scripts={"python3.11": FITS, "df": disk}, GRPO_KIND=kind)
    if needed is None:
        assert done.returncode == 7 and calls
        return
    assert (done.stdout, calls) == ("", [])
    assert refused(done) == (
        f"{tmp_path}/made needs about {needed} GiB, and {free >> 10} MiB are free there: free some, or set GRPO_VENV "
        "to a folder on another disk"
    )


@pytest.mark.parametrize(("built", "drivers", "made", "needed"), [("+cpu", H100, "CPU", "GPU"), ("", (), "GPU", "CPU")])
def test_an_environment_with_builds_of_the_other_kind_is_left_as_it_is(built, drivers, made, needed, machine, tmp_path):
    (tmp_path / "made" / "lib" / "python3.12" / "site-packages" / f"torch-2.13.0{built}.dist-info").mkdir(parents=True)
    done, calls = machine(*drivers)
    said = f"setup: {tmp_path}/made has builds for {made}s, and this machine needs those for {needed}s: remove"
    assert (done.returncode, calls) == (2, []) and done.stderr.startswith(said)


def test_a_python_that_is_named_wins_and_is_refused_if_it_is_none(machine):
    done, calls = machine(scripts={"python3.11": FITS, "other": FITS}, GRPO_PYTHON="other")
    assert done.returncode == 7 and calls[0].startswith("other -m venv")
    done, _ = machine(scripts={"other": OLD}, GRPO_PYTHON="other")
    assert refused(done) == (
        "GRPO_PYTHON=other is no Python 3.11 or newer with venv and Python.h: install it, or unset GRPO_PYTHON"
    )


UV = f"{SHELL}{FAILS}\n"
# pip puts the program of a package below the folder that `--target` names, the sixth word.
PIP = f"{SHELL}[[ $1 == -m ]] || exit 1\nmkdir -p $6/bin\ncat > $6/bin/uv <<'END'\n{UV}END\nchmod +x $6/bin/uv\n"


@pytest.mark.parametrize("there", [True, False])
def test_uv_gets_a_python_where_none_is_here(there, machine, tmp_path):
    program = {"uv": UV} if there else {"python3": PIP}
    done, calls = machine(scripts={"python3.12": OLD, **program})
    assert refused(done).startswith(
        "no Python 3.11 or newer with venv and Python.h is here, and uv got none: install python3.12"
    )
    assert calls == [f"uv venv --quiet --managed-python --python 3.12 --seed --allow-existing {tmp_path}/made"]


def test_a_machine_without_a_python_and_without_uv_is_one_line(machine):
    assert "uv got none: install python3.12, python3.12-venv and python3.12-dev" in refused(machine()[0])


@pytest.mark.parametrize("graphics", [(), H100])
def test_a_missing_compiler_is_one_line(graphics, machine):
    done, calls = machine(*graphics, scripts={"python3.11": FITS, "gcc": None})
    assert (refused(done), calls) == (
        "no C compiler is here, and some packages and kernels are compiled: install gcc, or set CC",
        [],
    )
    assert machine(*graphics, scripts={"python3.11": FITS, "gcc": None}, CC="/opt/cc")[0].returncode == 7
    assert machine(*graphics, scripts={"python3.11": FITS, "gcc": None, "clang": OLD})[0].returncode == 7


def test_a_library_that_kernels_on_cpus_need_is_named_before_anything_is_installed(machine):
    done, calls = machine(scripts={"python3.11": MAKES}, LACKING="libnuma.so.1")
    assert refused(done).startswith("vLLM's kernels on CPUs need libnuma.so.1: install libnuma1 (Debian, Ubuntu)")
    assert calls == []


def test_a_torch_for_cpus_comes_from_where_uv_knows_it_and_is_never_one_for_gpus(machine, tmp_path):
    done, calls = machine(scripts={"python3.11": MAKES})
    [torch] = [
        line for line in (ROOT / "launch/requirements-cpu.txt").read_text().split() if line.startswith("torch==")
    ]
    python = f"--quiet --system-certs --python {tmp_path}/made/bin/python --no-deps"
    assert calls == [f"uv pip install {python} --torch-backend cpu {torch}"]
    assert refused(done).startswith(f"no build of {torch} for CPUs and this Python was found, where pip looks or in")


@pytest.mark.parametrize(
    ("capabilities", "newest"), [(["7.0"], "7.0"), (["6.1", "7.0"], "7.0"), (["7.0", "7.5"], ""), (["12.0"], "")]
)
def test_gpus_that_are_too_old_are_one_line(capabilities, newest, machine):
    done, _ = machine(["580.65.06"], capabilities, {"python3.11": FITS, "gcc": OLD})
    if newest:
        assert refused(done).startswith(f"the GPU has compute capability {newest}, and CUDA 13 and vLLM need 7.5")
    else:
        assert done.returncode == 7
