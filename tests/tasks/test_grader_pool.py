import logging
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from pebble import ProcessExpired

from grpo.config import RewardConfig, RewardPartConfig, UserError
from grpo.tasks import grader_pool, grading_worker
from grpo.tasks.grader_pool import GraderPool


def outcomes(grades):
    return [grade.outcome for grade in grades]


def worker_pid(pool):
    return pool._pool.schedule(os.getpid).result()


@pytest.fixture(scope="module")
def obeying(custom_rewards):
    """Yields a pool whose reward does what the completion says."""
    reward = RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")], timeout_seconds=1.0, memory_gib=2.0)
    with GraderPool(reward) as pool:
        yield pool, f"{custom_rewards}:obey"


@pytest.mark.slow
def test_misbehaving_answers_cost_only_their_own_grade(obeying, caplog):
    pool, name = obeying
    texts = ["5", "sleep", "spin", "raise", "hog", "recurse", "die", "nan", "exit", "crash", "6"]
    with caplog.at_level(logging.WARNING):
        grades = pool.grade([(text, "5", {}) for text in texts])
        pool.grade([("raise", "5", {}), ("5", "5", {})])
    assert outcomes(grades) == [
        "graded", "timed_out", "timed_out", "raised", "raised", "failed", "failed", "raised",
        "raised", "failed", "graded",
    ]  # fmt: skip
    assert [grade.parts[name] for grade in grades] == [1.0] + [0.0] * 10
    warnings = [record.getMessage() for record in caplog.records]
    of = "of misbehaving_rewards.py"
    left_out = "nothing is learned from their groups, so let the function return 0 where it means 0"
    expected = {
        "grading took longer than task.reward.timeout_seconds=1 for 2 answers, for example 'sleep'; they get no reward",
        f"reward part '{name}' raised ValueError for 2 answers, for example 'raise' (cannot read raise (line 5 {of})); "
        f"{left_out}",
        f"reward part '{name}' raised SystemExit for 1 answer, for example 'exit' (enough (line 9 {of})); {left_out}",
        f"grading needs more memory than task.reward.memory_gib=2 for 1 answer, for example 'hog'; {left_out}",
        "grading ended in RecursionError for 1 answer, for example 'recurse' (maximum recursion depth exceeded); they "
        "get no reward",
        "grading ended its process (exit code 3) for 1 answer, for example 'die'; they get no reward",
        "grading ended its process (SIGSEGV) for 1 answer, for example 'crash'; they get no reward",
    }
    assert {*warnings} == expected
    assert len(warnings) == len(expected)


def test_grades_come_in_the_order_of_the_items_and_see_the_metadata(obeying):
    pool, name = obeying
    grades = pool.grade([(str(index), "3", {"bonus": float(index)}) for index in range(6)])
    assert [grade.parts[name] for grade in grades] == [0.0, 1.0, 2.0, 4.0, 4.0, 5.0]
    assert pool.grade([]) == []


def test_a_reward_that_always_raises_ends_the_run(obeying, monkeypatch):
    pool, _ = obeying
    monkeypatch.setattr(pool, "_has_worked", set())
    pool.grade([("die", "5", {})])
    with pytest.raises(UserError, match="raised ValueError for all 2 answers: 'raise' .cannot read raise."):
        pool.grade([("raise", "5", {}), ("raise", "6", {})])


def test_one_odd_problem_for_whose_answers_the_reward_raises_does_not_end_a_run_in_which_it_has_worked(obeying):
    """Groups are graded as they come, so such a problem may be graded alone, and again after each resumption."""
    pool, _ = obeying
    pool.grade([("5", "5", {})])
    assert outcomes(pool.grade([("raise", "5", {})] * 8)) == ["raised"] * 8
    pool.grade([("5", "5", {})])


def test_one_answer_that_is_graded_by_itself_does_not_end_the_run_when_the_reward_raises(obeying):
    pool, _ = obeying
    assert outcomes(pool.grade([("raise", "5", {})])) == ["raised"]


@pytest.mark.parametrize(("part", "outcome"), [("math", "failed"), ("rewards.py:own", "raised")])
def test_an_exception_is_the_completions_fault_in_a_part_of_ours_and_the_functions_in_a_users(
    part, outcome, monkeypatch
):
    def fails(completion, answer, metadata):
        raise ValueError("no number")

    monkeypatch.setitem(grading_worker._parts, part, fails)
    assert grading_worker.grade_one("x", "5", {}).outcome == outcome


def test_answers_that_all_kill_their_workers_do_not_end_the_run(obeying):
    pool, _ = obeying
    assert outcomes(pool.grade([("hog", "5", {}), ("die", "5", {})])) == ["raised", "failed"]


@pytest.mark.slow
def test_when_no_answer_of_many_gets_a_grade_the_run_ends(custom_rewards, monkeypatch):
    monkeypatch.setattr(grader_pool, "FRUITLESS", 5)
    with GraderPool(RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")])) as pool:
        for texts in (["die", "die"], ["die", "5"], ["die", "die"], ["crash", "die"]):
            pool.grade([(text, "5", {}) for text in texts])
        with pytest.raises(UserError, match="none of the last 5 answers .*SIGSEGV.*, for .* 'crash'; "):
            pool.grade([("crash", "5", {})])


@pytest.mark.slow
def test_a_reward_that_hangs_is_found_out_before_it_has_hung_for_each_answer(custom_rewards, monkeypatch):
    monkeypatch.setattr(grader_pool, "FRUITLESS", 2)
    reward = RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")], timeout_seconds=0.5)
    late = [("5", "5", {}), *[("sleep", "5", {})] * 3, ("5", "5", {})]
    with GraderPool(reward) as pool, pytest.raises(UserError, match="none of the last 2 answers .*longer than"):
        pool.grade([("sleep", "5", {})] * 1000)
    with GraderPool(reward) as pool:
        assert outcomes(pool.grade(late)) == ["graded", *["timed_out"] * 3, "graded"]


@pytest.mark.slow
def test_processes_that_a_reward_started_end_with_its_worker(custom_rewards):
    reward = RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")], timeout_seconds=1.0)

    def running(seconds):
        return [
            process for process in psutil.process_iter(["cmdline"]) if ["sleep", seconds] == process.info["cmdline"]
        ]

    with GraderPool(reward) as pool:
        # The first outlasts its answer, as a server that a reward keeps; the second's worker is killed.
        pool.grade([("start sleep 601.25", "5", {})])
        [kept] = running("601.25")
        pool.grade([("start sleep 600", "5", {})])
        deadline = time.monotonic() + 20
        while running("600") and time.monotonic() < deadline:
            # Whenever an answer fails, the pool looks.
            pool.grade([("raise", "5", {})])
        assert not running("600")
        assert not psutil.wait_procs([kept], timeout=10)[1]
        pool.grade([("start sleep 602.25", "5", {})])
        [other] = running("602.25")
    assert not psutil.wait_procs([other], timeout=10)[1]


@pytest.mark.slow
@pytest.mark.parametrize("texts", [["5"], ["slow", "slow", "slow", "5"]], ids=["idle", "busy"])
def test_workers_that_are_stopped_are_replaced_and_their_answers_graded(texts, custom_rewards, monkeypatch, caplog):
    monkeypatch.setattr(grader_pool, "MARGIN_SECONDS", 2.0)
    reward = RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")], timeout_seconds=3.0, workers=1)
    with GraderPool(reward) as pool, ThreadPoolExecutor() as threads:
        worker = psutil.Process(worker_pid(pool))
        graded = threads.submit(pool.grade, [(text, "5", {}) for text in texts]) if len(texts) > 1 else None
        time.sleep(0.2)
        worker.suspend()
        graded = graded or threads.submit(pool.grade, [(text, "5", {}) for text in texts])
        grades = graded.result(120)
        assert outcomes(grades)[-1] == "graded" and "failed" not in outcomes(grades)
        assert not worker.is_running()
    if len(texts) == 1:
        assert "no grading worker has reported for 5 s" in caplog.text


@pytest.mark.slow
def test_two_threads_whose_workers_are_stopped_have_them_replaced_once(custom_rewards, monkeypatch):
    """With pipeline=continuous an evaluation is graded in a thread of its own."""
    monkeypatch.setattr(grader_pool, "MARGIN_SECONDS", 1.0)
    reward = RewardConfig(parts=[RewardPartConfig(name=f"{custom_rewards}:obey")], timeout_seconds=1.0, workers=2)
    with GraderPool(reward) as pool, ThreadPoolExecutor() as threads:
        for worker in {pool._pool.schedule(os.getpid).result() for _ in range(40)}:
            psutil.Process(worker).suspend()
        graded = []
        for _ in range(2):
            graded.append(threads.submit(pool.grade, [("slow", "5", {})] * 12))
            time.sleep(0.5)
        for grades in graded:
            assert outcomes(grades.result(120)) == ["graded"] * 12


@pytest.mark.slow
def test_an_answer_whose_worker_is_killed_is_graded_by_another(obeying, tmp_path):
    pool, _ = obeying
    once = tmp_path / "killed"
    [grade] = pool.grade([(f"kill {once}", f"kill {once}", {})])
    assert (grade.outcome, once.exists()) == ("graded", True)


def test_a_pool_survives_the_death_of_an_idle_worker(obeying):
    pool, name = obeying
    pid = worker_pid(pool)
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert [grade.parts[name] for grade in pool.grade([("5", "5", {})])] == [1.0]
    assert worker_pid(pool) != pid


def test_a_thread_that_still_grades_does_not_start_the_workers_of_a_closed_pool_again(monkeypatch):
    """Both threads would close the same pipes at the same time, and fresh workers would outlive the pool."""
    monkeypatch.setattr(grader_pool, "MARGIN_SECONDS", 1.0)
    pool = GraderPool(RewardConfig(parts=[RewardPartConfig(name="exact")], timeout_seconds=1.0))
    with ThreadPoolExecutor() as threads:
        graded = threads.submit(lambda: [pool.grade([("5", "5", {})]) for _ in range(300)])
        assert worker_pid(pool)
        pool.close()
        with pytest.raises(RuntimeError, match="^the pool is closed"):
            graded.result(60)


@pytest.mark.slow
def test_hostile_formulas_are_graded_or_cut_off():
    texts = [
        r"\boxed{10^{10^{10}}}",
        r"\boxed{10**10**10}",
        r"\boxed{" + "9" * 2_000_000 + "}",
        "\\boxed{\ud800}",
        r"\boxed{5}",
    ]
    with GraderPool(RewardConfig(parts=[RewardPartConfig(name="math")], timeout_seconds=1.0)) as pool:
        grades = pool.grade([(text, "5", {}) for text in texts])
    assert [grade.parts["math"] for grade in grades] == [0.0, 0.0, 0.0, 0.0, 1.0]
    assert grades[0].outcome == "timed_out"
    assert grades[-1].outcome == "graded"


def test_busy_workers_die_with_their_parent(tmp_path):
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys, time\n"
        "from grpo.config import RewardConfig, RewardPartConfig\n"
        "from grpo.tasks.grader_pool import GraderPool\n"
        "if __name__ == '__main__':\n"
        "    pool = GraderPool(RewardConfig(parts=[RewardPartConfig(name='exact')]))\n"
        "    pid = pool._pool.schedule(os.getpid).result()\n"
        "    busy = pool._pool.schedule(sum, args=(range(10**12),))\n"
        "    while not busy.running(): time.sleep(0.01)\n"
        "    print(pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as parent:
        worker = Path(f"/proc/{int(parent.stdout.readline())}")
        assert worker.exists()
        parent.kill()
    deadline = time.monotonic() + 20
    while worker.exists() and "zombie" not in (worker / "status").read_text() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not worker.exists() or "zombie" in (worker / "status").read_text()


ODD = """
import os, subprocess, sys
leaked = []
def leaks(completion):
    leaked.append(bytearray(300 * 2**20))
    return 1.0
def leaves(completion):
    if completion == "leave": os._exit(0)
    if os.fork() == 0: os._exit(0)
    return float(os.waitstatus_to_exitcode(os.wait()[1]) == 0)
def prints(completion):
    print("\\x1b]0;owned\\x07 tab\\t", completion)
    print("\\u202e", file=sys.stderr)
    return 1.0
def daemon(completion):
    subprocess.Popen(["sleep", "605.25"], start_new_session=True)
    return 1.0
def knows(completion): return float(completion in os.environ)
"""


@pytest.fixture
def odd(tmp_path):
    """Returns a function that makes the reward whose only part is a function of `ODD`."""
    (tmp_path / "odd.py").write_text(ODD)
    return lambda name, **settings: RewardConfig(parts=[RewardPartConfig(name=f"{tmp_path}/odd.py:{name}")], **settings)


@pytest.mark.slow
def test_a_reward_that_leaks_memory_grades_on_in_fresh_workers(odd, caplog):
    with GraderPool(odd("leaks", memory_gib=1.5)) as pool:
        grades = pool.grade([(str(number), "", {}) for number in range(12)])
    assert [(*grade.parts.values(), grade.outcome) for grade in grades] == [(1.0, "graded")] * 12
    assert caplog.records == []


def test_an_answer_that_needs_too_much_memory_is_wrong_in_a_part_of_ours_only():
    """A part of ours keeps nothing from one answer to the next, so the answer is to blame."""
    outcomes_by_code = {}
    with GraderPool(RewardConfig(parts=[RewardPartConfig(name="exact")])) as pool:
        for code in (grading_worker.FULL_OF_OURS, grading_worker.FULL_OF_OWN):
            future = Future()
            future.set_exception(ProcessExpired("", code=code))
            outcomes_by_code[code] = pool._result(future).outcome
    assert outcomes_by_code == {95: "failed", 96: "raised"}


def test_a_reward_that_ends_its_process_without_a_fault_is_reported_at_once(odd, caplog):
    with GraderPool(odd("leaves", timeout_seconds=600.0)) as pool:
        grades = pool.grade([("leave", "", {}), ("stay", "", {})])
    assert [(*grade.parts.values(), grade.outcome) for grade in grades] == [(0.0, "failed"), (1.0, "graded")]
    assert "grading ended its process (exit code 0) for 1 answer, for example 'leave'" in caplog.text


def test_the_output_of_a_reward_cannot_steer_the_terminal(odd, capfd):
    with GraderPool(odd("prints")) as pool:
        pool.grade([("5", "", {})])
    assert capfd.readouterr() == ("\\x1b]0;owned\\x07 tab\t 5\n", "\\u202e\n")


def test_a_program_that_leaves_its_workers_group_ends_with_the_worker_too(odd):
    with GraderPool(odd("daemon")) as pool:
        pool.grade([("5", "", {})])
        started = psutil.process_iter(["cmdline"])
        [kept] = [process for process in started if process.info["cmdline"] == ["sleep", "605.25"]]
    assert not psutil.wait_procs([kept], timeout=20)[1]


def test_a_worker_inherits_no_key_but_those_that_a_users_function_may_need(odd, monkeypatch):
    for name in ("WANDB_API_KEY", "OPENAI_API_KEY", "HOME_OF_KEYS"):
        monkeypatch.setenv(name, "7")
    with GraderPool(odd("knows")) as pool:
        grades = pool.grade([(name, "", {}) for name in ("WANDB_API_KEY", "OPENAI_API_KEY", "HOME_OF_KEYS")])
    assert [next(iter(grade.parts.values())) for grade in grades] == [0.0, 1.0, 1.0]
    with GraderPool(RewardConfig(parts=[RewardPartConfig(name="exact")])) as pool:
        assert pool._pool.schedule(os.getenv, args=("OPENAI_API_KEY",)).result() is None


@pytest.mark.parametrize(("part", "gib"), [("math", 0.01), ("big.py:f", 0.5)])
def test_a_memory_cap_too_small_to_start_with_is_one_line(part, gib, tmp_path, capfd):
    (tmp_path / "big.py").write_text("data = bytearray(2**30)\ndef f(completion): return 1.0\n")
    name = part.replace("big.py", f"{tmp_path}/big.py")
    with pytest.raises(UserError, match=rf"do not start .*Error.*: is task.reward.memory_gib={gib} too small for"):
        GraderPool(RewardConfig(parts=[RewardPartConfig(name=name)], memory_gib=gib))
    assert capfd.readouterr() == ("", "")


def test_importing_the_package_stays_light():
    code = (
        "import sys, grpo.tasks; heavy = {'torch', 'datasets', 'math_verify', 'reasoning_gym', 'transformers'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
def test_a_worker_that_dies_before_it_says_what_it_was_given_costs_nobody_else_a_grade(obeying, monkeypatch):
    monkeypatch.setattr(grader_pool, "MARGIN_SECONDS", 1.0)
    pool, _ = obeying
    broken = iter([True])
    schedule = pool._schedule

    def breaking(function, item, seconds):
        # As pebble does where the only worker is gone and no task is known to be its.
        if item[0] == "die" and next(broken, False):
            pool._pool.stop()
        return schedule(function, item, seconds)

    monkeypatch.setattr(pool, "_schedule", breaking)
    grades = pool.grade([(text, "5", {}) for text in ("5", "die", "6")])
    assert outcomes(grades) == ["graded", "failed", "graded"]
