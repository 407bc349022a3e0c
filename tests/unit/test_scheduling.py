"""What a lost worker costs, and which runs follow others."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from ovo_clinic import experiment as experiments
from ovo_clinic import verbs
from ovo_clinic.errors import UserError
from ovo_clinic.scheduling import LOSSES, Job, LocalProcesses
from tests.small_jobs import Note

SIMULATION = experiments.load("simulation")


def note(folder: Path, kills: int = 0) -> Note:
    return Note(SIMULATION, folder, folder, kills)


def test_a_lost_worker_costs_its_own_run_only(tmp_path: Path) -> None:
    jobs = [note(tmp_path / str(number), kills=number == 3) for number in range(6)]
    done: Counter[str] = Counter()

    def count(job: Job) -> Iterable[Job]:
        done[job.folder.name] += 1
        return ()

    LocalProcesses(2).run(jobs, count)
    assert done == {str(number): 1 for number in range(6)}
    assert jobs[3].runs == 2


def test_workers_that_are_killed_again_and_again_are_one_clear_error(tmp_path: Path) -> None:
    jobs = [note(tmp_path / "good"), note(tmp_path / "deadly", kills=99)]
    message = f"^worker processes were killed {LOSSES} times[^\n]*fewer than 1 --workers. Finished runs are kept"
    with pytest.raises(UserError, match=message):
        LocalProcesses(1).run(jobs, lambda job: ())
    assert jobs[0].runs >= 1 and LOSSES <= jobs[1].runs <= LOSSES + 1


def test_runs_that_follow_others_are_computed(tmp_path: Path) -> None:
    last = note(tmp_path / "2")
    following = {"0": [note(tmp_path / "1")], "1": [last], "2": []}
    LocalProcesses(1).run([note(tmp_path / "0")], lambda job: following[job.folder.name])
    assert last.runs == 1


def test_the_first_error_of_a_run_ends_all(tmp_path: Path) -> None:
    jobs = [note(tmp_path / "absent" / "folder"), *(note(tmp_path / str(number)) for number in range(50))]
    with pytest.raises(FileNotFoundError):
        LocalProcesses(1).run(jobs, lambda job: ())
    assert sum(job.runs for job in jobs[1:]) < 50


@pytest.mark.parametrize(
    ("options", "message"),
    [({"gpus": 0.5}, "--gpus: shares out the GPUs"), ({"cluster": "auto", "workers": 2}, "--workers: a cluster runs")],
)
def test_options_that_exclude_each_other_are_refused(home: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=f"^{message}"):
        verbs.compare("simulation", **options)  # type: ignore[arg-type]
