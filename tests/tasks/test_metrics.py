"""metrics: sums are exact, however the samples were cut into batches."""

from __future__ import annotations

import numpy as np
import torch

from raytrain.tasks.metrics import Sums

CPU = torch.device("cpu")


def test_sums_over_uneven_batches_are_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randint(-1000, 1000, (97, 3, 3), generator=generator)
    halves = torch.randint(-1000, 1000, (97,), generator=generator).double() / 8
    for cut in ([97], [1] * 97, [50, 40, 7], [96, 1]):
        sums = Sums()
        for images, values in zip(whole.split(cut), halves.split(cut), strict=True):
            sums.add({"matrix": images.sum(0), "value": values.sum(), "count": torch.tensor(len(values))})
        total = sums.reduce(CPU)
        assert np.array_equal(total["matrix"], whole.sum(0).numpy()) and total["count"] == 97
        assert float(total["value"]) == float(halves.sum())


def test_totals_are_int64_and_float64() -> None:
    sums = Sums()
    for _ in range(3):
        sums.add(
            {
                "bool": torch.tensor(True),
                "byte": torch.tensor(200, dtype=torch.uint8),
                "half": torch.tensor(0.25, dtype=torch.float16),
                "single": torch.tensor(0.1),
            }
        )
    total = sums.reduce(CPU)
    assert {name: value.dtype for name, value in total.items()} == {
        **{"bool": np.int64, "byte": np.int64},
        **{"half": np.float64, "single": np.float64},
    }
    assert (total["bool"], total["byte"], total["half"]) == (3, 600, 0.75)
    assert total["single"] == 3 * np.float64(np.float32(0.1))


def test_a_count_beyond_float32_and_a_small_addition_are_kept() -> None:
    sums = Sums()
    sums.add({"count": torch.tensor(2**53), "loss": torch.tensor(2.0**30, dtype=torch.float32)})
    sums.add({"count": torch.tensor(1), "loss": torch.tensor(2.0**-20, dtype=torch.float32)})
    total = sums.reduce(CPU)
    assert total["count"] == 2**53 + 1 and total["loss"] == 2.0**30 + 2.0**-20


def test_shards_are_added_up_in_their_order_whatever_came_first() -> None:
    values = torch.tensor([1.0, 1e16, -1e16, 1.0], dtype=torch.float64)
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 2, 0, 3]):
        sums = Sums(shards=4)
        for shard in order:
            sums.add({"value": values[shard], "count": torch.tensor(1)}, shard)
        total = sums.reduce(CPU)
        assert total["value"] == ((1.0 + 1e16) - 1e16) + 1.0 and total["count"] == 4
    assert values.sum() != (values[0] + values[3]) + (values[1] + values[2]), "the order counts"


def test_sums_carry_no_graph_and_leave_what_was_added_alone() -> None:
    value = torch.ones(2, requires_grad=True)
    sums = Sums()
    sums.add({"x": value * 2})
    sums.add({"x": value * 2})
    assert sums.reduce(CPU)["x"].tolist() == [4.0, 4.0] and value.tolist() == [1.0, 1.0]
    kept = torch.zeros(1, dtype=torch.float64)
    other = Sums()
    for _ in range(2):
        other.add({"x": kept})
        kept += 1
    assert kept.item() == 2, "the caller's tensor is not the total"


def test_totals_without_a_process_group_are_local() -> None:
    assert Sums().reduce(CPU) == {}
    sums = Sums()
    sums.add({"x": torch.tensor([1, 2])})
    assert sums.reduce(CPU)["x"].tolist() == [1, 2] and sums.reduce(CPU)["x"].tolist() == [1, 2]
