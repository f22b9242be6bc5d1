"""precision: autocast on the CPU, and the scaler's steps and state."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from raytrain import UserError
from raytrain.training import precision
from raytrain.training.precision import Precision, check_device, fastest

CPU = torch.device("cpu")


def model_and_optimizer() -> tuple[nn.Linear, torch.optim.SGD]:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(("name", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.half)])
def test_forward_uses_the_precision_and_weights_stay_float32(name: str, dtype: torch.dtype) -> None:
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


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_a_factor_is_that_of_the_gradients_to_the_bit(name: str) -> None:
    found = []
    for product, factor in ((1.0, 1 / 3), (1 / 3, 1.0)):
        precision, (model, _) = Precision(name, CPU), model_and_optimizer()
        with precision.forward():
            loss = model(torch.ones(2, 4)).square().sum()
        precision.scaled(loss * product, factor).backward()
        assert model.weight.grad is not None
        found.append(model.weight.grad)
    assert torch.equal(*found)


def test_fp16_scales_gradients_and_brings_them_back() -> None:
    precision, (model, optimizer) = Precision("fp16", CPU), model_and_optimizer()
    precision.scaled(model(torch.ones(2, 4)).sum()).backward()
    assert isinstance(precision.scale, torch.Tensor) and precision.scale.item() == precision.scaler.get_scale() == 65536
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


def test_tf32_is_set_within_passes_on_a_gpu_alone_and_put_back() -> None:
    def setting() -> str:
        return torch.get_float32_matmul_precision()

    seen: list[str] = []
    weight = nn.Parameter(torch.ones(1))
    weight.register_hook(lambda gradient: seen.append(setting()))
    for device in ("cuda", "cpu"):
        one = Precision("tf32", torch.device(device))
        with one.forward():
            seen.append(setting())
            loss = weight.sum()
        seen.append(setting())
        with one.products():
            loss.backward()
        seen.append(setting())
    assert seen == ["high", "highest", "high", "highest", *["highest"] * 4]


@pytest.mark.parametrize("name", ["tf32", "bf16"])
def test_a_device_without_a_precision_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    check_device("bf16", CPU)
    with pytest.raises(UserError, match=r"tf32 needs a GPU of compute capability 8.0 or higher, and the workers are"):
        check_device("tf32", CPU)
    cuda = torch.device("cuda")
    check_device(name, cuda)  # there is none to look at here
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    check_device("fp16", cuda)
    with pytest.raises(UserError, match=f"{name} needs .*, and this is a Tesla T4, in precision; use fp32, fp16 or"):
        check_device(name, cuda)


class FakeClock:
    """What `fastest` asks of the module `time`."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    """A clock that stands still but for its `sleep`, so that a busy machine changes no measurement."""
    fake = FakeClock()
    monkeypatch.setattr(precision, "time", fake)
    return fake


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ({"fp32": 0.010, "bf16": 0.005, "fp16": 0.020}, "bf16"),
        ({"fp32": 0.010, "bf16": 0.008, "fp16": 0.004}, "fp16"),
        ({"fp32": 0.010, "bf16": 0.004, "fp16": 0.004}, "bf16"),
        ({"fp32": 0.010, "bf16": 0.010, "fp16": 0.030}, "fp32"),
        ({"fp32": 0.010, "bf16": None, "fp16": 0.030}, "fp32"),
        ({"fp32": 0.020, "bf16": None, "fp16": 0.005}, "fp16"),
        ({"fp32": None, "bf16": None, "fp16": None}, "fp32"),
    ],
)
def test_auto_takes_the_fastest_finite_or_more_exact_precision(
    seconds: dict[str, float | None], chosen: str, clock: FakeClock
) -> None:
    def step(one: Precision) -> list[torch.Tensor]:
        clock.sleep(seconds[one.name] or 0.001)
        return [torch.ones(1), torch.tensor([1.0, 1.0 if seconds[one.name] else float("nan")])]

    name, milliseconds = fastest(step, CPU)
    assert name == chosen and {one for one, value in milliseconds.items() if value is None} == {
        one for one, value in seconds.items() if value is None
    }
    for one, value in seconds.items():
        assert value is None or milliseconds[one] == pytest.approx(1000 * value)


def test_far_too_slow_precision_is_tried_once(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setattr(precision, "_TRIAL_SECONDS", 0.2)
    calls: list[str] = []

    def step(one: Precision) -> list[torch.Tensor]:
        calls.append(one.name)
        clock.sleep({"fp32": 0.004, "bf16": 0.002, "fp16": 0.5}[one.name])
        return [torch.ones(1)]

    name, milliseconds = fastest(step, CPU)
    assert name == "bf16" and (milliseconds["fp16"] or 0) >= 500
    assert calls.count("fp16") == 1 and calls.count("bf16") == 8


def test_a_model_whose_passes_take_seconds_is_tried_twice(monkeypatch: pytest.MonkeyPatch, clock: FakeClock) -> None:
    monkeypatch.setattr(precision, "_TRIAL_SECONDS", 0.02)
    calls: list[str] = []

    def step(one: Precision) -> list[torch.Tensor]:
        calls.append(one.name)
        clock.sleep(0.03)
        return [torch.ones(1)]

    assert fastest(step, CPU)[0] == "fp32" and len(calls) == 6
