"""The gradient of one optimizer step is the same for every split, for every member of the family of losses."""

import pytest
import torch

from tests import warm
from tests.learner.family_worker import MEMBERS
from tests.learner.models import tiny_llama
from tests.learner.test_partition import TOLERANCE, relative_difference

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def changes(tmp_path_factory):
    folder = tmp_path_factory.mktemp("family")
    model = tiny_llama(folder / "model")
    changes = {}
    for ranks in (1, 2):
        done = warm.ranks(ranks, ["-m", "tests.learner.family_worker", model, folder], warm.LEARNER, timeout=300)
        assert done.returncode == 0, done.stderr
        changes |= torch.load(folder / f"family-{ranks}.pt")
    return changes


@pytest.mark.parametrize("member", MEMBERS)
def test_a_member_has_the_same_gradient_for_every_split(changes, member):
    cases = {case: change for case, change in changes.items() if case.startswith(f"{member}/")}
    # 1 rank, 2 ranks, and 2 ranks that compute each row together, each with three cuts
    assert len(cases) == 3 * 3
    whole = {name: tensor.double() for name, tensor in cases[f"{member}/1/1/shared/10000"].items()}
    assert sum(tensor.square().sum() for tensor in whole.values()) > 1e-6
    differences = {case: relative_difference(change, whole) for case, change in cases.items()}
    assert max(differences.values()) <= TOLERANCE, sorted(differences.items(), key=lambda item: -item[1])[:5]


@pytest.mark.parametrize("member", MEMBERS)
def test_under_bfloat16_a_split_changes_no_more_than_rounding_does(changes, member):
    """Weights of bfloat16 have eight bits. The second split was measured .6 to 1.2 % from the first."""
    split, whole = changes[f"bfloat16 {member}/packed/25"], changes[f"bfloat16 {member}/shared/10000"]
    assert relative_difference(split, {name: tensor.double() for name, tensor in whole.items()}) <= 0.02


def test_members_differ_from_each_other(changes):
    wholes = {member: changes[f"{member}/1/1/shared/10000"] for member in MEMBERS}
    plain = {name: tensor.double() for name, tensor in wholes["clip"].items()}
    same = {member for member, change in wholes.items() if relative_difference(change, plain) < 1e-3}
    assert same == {"clip"}
