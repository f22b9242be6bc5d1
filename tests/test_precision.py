"""precision: autocast on the CPU, and the scaler's steps and state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raytrain.precision import Precision

CPU = torch.device("cpu")


def model_and_optimizer() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_forward_computes_in_the_precision_and_weights_stay_float32(name: str, dtype: torch.dtype) -> None:
    precision, (model, optimizer) = Precision(name, CPU), model_and_optimizer()
    with precision.forward():
        outputs = model(torch.ones(2, 4))
        loss = nn.functional.cross_entropy(outputs, torch.tensor([0, 1]), reduction="sum")
    assert outputs.dtype == dtype and loss.dtype == torch.float32
    before = model.weight.detach().clone()
    precision.scaled(loss).backward()
    precision.step(optimizer)
    assert model.weight.dtype == torch.float32 and not torch.equal(model.weight, before)
    assert model(torch.ones(2, 4)).dtype == torch.float32, "the context has ended"


def test_fp32_is_plain_torch_bit_for_bit() -> None:
    precision, (model, optimizer), (plain, own) = Precision("fp32", CPU), model_and_optimizer(), model_and_optimizer()
    for _ in range(3):
        with precision.forward():
            precision.scaled(model(torch.ones(2, 4)).square().sum()).backward()
        precision.step(optimizer)
        plain(torch.ones(2, 4)).square().sum().backward()
        own.step()
    assert torch.equal(model.weight, plain.weight) and precision.state_dict() == {}


def test_fp16_scales_gradients_and_brings_them_back() -> None:
    precision, (model, optimizer) = Precision("fp16", CPU), model_and_optimizer()
    precision.scaled(model(torch.ones(2, 4)).sum()).backward()
    assert model.weight.grad is not None
    assert torch.equal(model.weight.grad, torch.full((3, 4), 2.0 * 65536))
    precision.unscale(optimizer, together=False)
    assert torch.equal(model.weight.grad, torch.full((3, 4), 2.0)), "clipping sees true gradients"
    before = model.weight.detach().clone()
    precision.step(optimizer)
    assert torch.allclose(model.weight, before - 0.2), "and they are not divided a second time"


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    precision, (model, optimizer) = Precision("fp16", CPU), model_and_optimizer()
    before = model.weight.detach().clone()
    precision.scaled(model(torch.ones(2, 4)).sum() * 1e35).backward()  # times 65,536 is beyond float32
    precision.step(optimizer)
    assert torch.equal(model.weight, before) and precision.state_dict()["scale"] == 32768
    optimizer.zero_grad()
    precision.scaled(model(torch.ones(2, 4)).sum()).backward()
    precision.step(optimizer)
    assert not torch.equal(model.weight, before) and precision.state_dict()["scale"] == 32768


def test_the_scaler_s_state_makes_a_round_trip() -> None:
    precision, (model, optimizer) = Precision("fp16", CPU), model_and_optimizer()
    for factor in (1e35, 1.0, 1.0):
        optimizer.zero_grad()
        precision.scaled(model(torch.ones(2, 4)).sum() * factor).backward()
        precision.step(optimizer)
    state = precision.state_dict()
    assert (state["scale"], state["_growth_tracker"]) == (32768, 2)
    other = Precision("fp16", CPU)
    other.load_state_dict(state)
    assert other.state_dict() == state


@pytest.mark.parametrize("name", ["fp32", "bf16"])
def test_precisions_without_a_scaler_have_no_state_and_take_any(name: str) -> None:
    precision = Precision(name, CPU)
    assert precision.state_dict() == {}
    precision.load_state_dict({})
    precision.load_state_dict({"scale": 2.0, "growth_factor": 2.0})
    assert precision.state_dict() == {}


def test_fp16_takes_up_a_run_that_had_no_scaler() -> None:
    precision = Precision("fp16", CPU)
    precision.load_state_dict({})
    assert precision.state_dict()["scale"] == 65536
