"""optim: torch's own optimizers, and schedules as plain formulas."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn

from raytrain import (
    SGD,
    Adam,
    AdamW,
    Constant,
    Cosine,
    CosineRestarts,
    ExponentialLR,
    History,
    LinearLR,
    MultiStepLR,
    OneCycle,
    Optimizer,
    Plateau,
    PolynomialLR,
    Schedule,
    SequentialLR,
    StepLR,
    TorchSchedule,
    UserError,
    WarmUp,
)

Parameters = Iterable[nn.Parameter]


def three_steps(build: Callable[[Parameters], torch.optim.Optimizer]) -> list[torch.Tensor]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = build(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).square().sum().backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize(
    ("declared", "own"),
    [
        (SGD(), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGD(lr=0.03, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9)),
        (
            SGD(lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.1),
            lambda p: torch.optim.SGD(p, lr=0.03, momentum=0.9, nesterov=True, weight_decay=0.1),
        ),
        (Adam(), torch.optim.Adam),
        (
            Adam(lr=0.02, betas=(0.7, 0.8), eps=1e-3, weight_decay=0.1),
            lambda p: torch.optim.Adam(p, lr=0.02, betas=(0.7, 0.8), eps=1e-3, weight_decay=0.1),
        ),
        (AdamW(), torch.optim.AdamW),
        (AdamW(lr=0.02, weight_decay=0.3), lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3)),
    ],
)
def test_optimizers_equal_torchs_for_three_steps(
    declared: Optimizer, own: Callable[[Parameters], torch.optim.Optimizer]
) -> None:
    ours, theirs = three_steps(declared.build), three_steps(own)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_momentum_starts_with_a_late_first_gradient() -> None:
    results = []
    for fused in (True, False):
        torch.manual_seed(0)
        early, late = parameters = [nn.Parameter(torch.randn(3)) for _ in range(2)]
        plain = torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        optimizer = SGD(lr=0.1, momentum=0.9).build(parameters) if fused else plain
        for step in range(4):
            optimizer.zero_grad()
            (early.square().sum() + (late.square().sum() if step > 1 else 0)).backward()
            optimizer.step()
        results.append(torch.cat([parameter.detach() for parameter in parameters]))
    torch.testing.assert_close(results[0], results[1], rtol=1e-6, atol=1e-7)


def test_a_first_step_that_overflows_in_fp16_leaves_no_momentum() -> None:
    weight = nn.Parameter(torch.ones(1000))
    optimizer, scaler = SGD(lr=0.1, momentum=0.9).build([weight]), torch.amp.GradScaler("cpu")
    scaler.scale(weight.sum() * 1e35).backward()
    scaler.step(optimizer)
    scaler.update()
    assert torch.equal(optimizer.state[weight]["momentum_buffer"], torch.zeros(1000))


def test_every_setting_of_an_optimizer_changes_what_it_does() -> None:
    """The comparison above would pass if a field reached neither side."""
    settings = [
        *(SGD(), SGD(weight_decay=0.1), SGD(momentum=0.9), SGD(momentum=0.9, nesterov=True), SGD(lr=0.2)),
        *(Adam(), Adam(betas=(0.5, 0.999)), Adam(betas=(0.9, 0.5)), Adam(eps=0.1), Adam(weight_decay=0.5)),
        *(AdamW(), AdamW(weight_decay=0.5), AdamW(lr=0.1)),
    ]
    results = [torch.cat([p.flatten() for p in three_steps(setting.build)]) for setting in settings]
    for number, one in enumerate(results):
        assert not any(torch.equal(one, other) for other in results[:number])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SGD(nesterov=True), "nesterov = True is out of range, in SGD; give a value of False, or momentum"),
        (lambda: SGD(momentum=1.0), r"momentum = 1.0 is out of range, in SGD; give a value in \[0, 1\)"),
        (lambda: SGD(momentum=-0.1), "momentum"),
        (lambda: SGD(lr=0), "lr = 0 is out of range, in SGD; give a value above 0"),
        (lambda: SGD(lr=math.nan), "lr = nan"),
        (lambda: SGD(lr=math.inf), "lr = inf"),
        (lambda: SGD(weight_decay=-1.0), "weight_decay = -1.0"),
        (lambda: Adam(betas=(0.9, 1.0)), r"betas = \(0.9, 1.0\) is out of range, in Adam; give a value with both in"),
        (lambda: AdamW(betas=(-0.1, 0.9)), "betas"),
        (lambda: Adam(eps=0.0), "eps = 0.0"),
        (lambda: StepLR(step_size=0), "step_size = 0"),
        (lambda: StepLR(gamma=0.0), "gamma = 0.0"),
        (lambda: Cosine(warmup_epochs=-1.0), "warmup_epochs = -1.0"),
        (lambda: Cosine(final=-0.1), "final = -0.1"),
    ],
)
def test_bad_settings_are_refused_at_once(build: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build()


def test_the_base_class_says_what_a_new_optimizer_needs() -> None:
    with pytest.raises(NotImplementedError, match=r"Optimizer needs a build\(parameters\)"):
        Optimizer().build([])


# Schedules


@pytest.mark.parametrize("schedule", [Schedule(), Constant()])
def test_a_constant_schedule_is_one_throughout(schedule: Schedule) -> None:
    assert {schedule.factor(step, 7, 3) for step in range(21)} == {1.0}


@pytest.mark.parametrize(("step_size", "gamma"), [(1, 0.5), (2, 0.1), (7, 0.3), (30, 0.1)])
def test_step_lr_equals_torchs_scheduler(step_size: int, gamma: float) -> None:
    ours, epochs, steps = StepLR(step_size=step_size, gamma=gamma), 20, 5
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.4)
    theirs = torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma)
    for epoch in range(epochs):
        rate = theirs.get_last_lr()[0]
        for step in range(steps):
            assert 0.4 * ours.factor(epoch * steps + step, steps, epochs) == pytest.approx(rate, rel=1e-12)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.step()


@pytest.mark.parametrize(("warmup", "final"), [(0.0, 0.0), (0.5, 0.0), (1.0, 0.1), (2.0, 1e-3), (1.3, 1.0)])
def test_cosine_equals_the_formula_at_every_step(warmup: float, final: float) -> None:
    schedule, steps, epochs = Cosine(warmup_epochs=warmup, final=final), 10, 4
    ramp = round(warmup * steps)
    for step in range(steps * epochs):
        if step < ramp:
            expected = (step + 1) / ramp
        else:
            angle = math.pi * (step - ramp) / (steps * epochs - ramp)
            expected = final + (1 - final) * (1 + math.cos(angle)) / 2
        assert schedule.factor(step, steps, epochs) == pytest.approx(expected, rel=1e-12)


def test_cosine_without_warmup_equals_torchs_scheduler() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=40, eta_min=0.05)
    schedule = Cosine(final=0.05)
    for step in range(40):
        assert schedule.factor(step, 10, 4) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs.step()


def test_cosine_rises_to_one_falls_to_final_and_stays_there() -> None:
    schedule = Cosine(warmup_epochs=1, final=0.01)
    factors = [schedule.factor(step, 100, 5) for step in range(500)]
    assert factors[0] == 0.01 and factors[99] == 1.0 and factors[100] == 1.0
    assert factors[:100] == sorted(factors[:100]) and factors[100:] == sorted(factors[100:], reverse=True)
    assert factors[-1] == pytest.approx(0.01, abs=1e-4)
    assert schedule.factor(10_000, 100, 5) == pytest.approx(0.01)
    assert Cosine(warmup_epochs=9.0).factor(49, 10, 5) == 50 / 90, "a warm-up longer than the run is cut, not an error"


def test_a_factor_is_a_function_of_the_step_alone() -> None:
    for schedule in (StepLR(step_size=2), Cosine(warmup_epochs=1)):
        forwards = [schedule.factor(step, 3, 6) for step in range(18)]
        assert [schedule.factor(step, 3, 6) for step in reversed(range(18))] == forwards[::-1]


def test_groups_follow_the_fields_and_keep_every_parameter() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    next(model.parameters()).requires_grad_(False)
    assert [group["factor"] for group in SGD().groups(model)] == [1.0]
    groups = AdamW(decay_norms_and_biases=False, backbone_lr_factor=0.1, weight_decay=0.5).groups(model)
    shapes = [(g["factor"], g.get("weight_decay"), [tuple(p.shape) for p in g["params"]]) for g in groups]
    assert shapes == [(0.1, 0.0, [(2,), (2,), (2,)]), (1.0, None, [(3, 8)]), (1.0, 0.0, [(3,)])]
    optimizer = AdamW(weight_decay=0.5).build(groups)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.0, 0.5, 0.0]


@pytest.mark.parametrize(("steps", "epochs"), [(10, 3), (7, 1), (100, 2)])
def test_one_cycle_is_torchs(steps: int, epochs: int) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1.0, steps * epochs, cycle_momentum=False)
    for step in range(steps * epochs):
        assert OneCycle().factor(step, steps, epochs) == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-9)
        optimizer.step()
        if step + 1 < steps * epochs:
            scheduler.step()


# Schedules as PyTorch's


SCHEDULERS = torch.optim.lr_scheduler
VALUES = (1.0, 1.1, 1.2, 0.9, None, 1.0, 0.95, 0.95)
STEPS, EPOCHS = 7, 8


@pytest.mark.parametrize(
    ("ours", "theirs", "every"),
    [
        (MultiStepLR((2, 3)), lambda o: SCHEDULERS.MultiStepLR(o, [2, 3]), "epoch"),
        (ExponentialLR(0.8), lambda o: SCHEDULERS.ExponentialLR(o, 0.8), "epoch"),
        (LinearLR(0.1, 1.0, 3), lambda o: SCHEDULERS.LinearLR(o, 0.1, 1.0, 3 * STEPS), "step"),
        (PolynomialLR(2.0), lambda o: SCHEDULERS.PolynomialLR(o, STEPS * EPOCHS, 2.0), "step"),
        (
            CosineRestarts(1, 2, final=0.1),
            lambda o: SCHEDULERS.CosineAnnealingWarmRestarts(o, STEPS, 2, eta_min=0.03),
            "step",
        ),
        (CosineRestarts(2), lambda o: SCHEDULERS.CosineAnnealingWarmRestarts(o, 2 * STEPS), "step"),
        (
            Plateau(gamma=0.5, patience=0, min_lr=0.05),
            lambda o: SCHEDULERS.ReduceLROnPlateau(o, "min", 0.5, 0, min_lr=0.05),
            "min",
        ),
        (
            Plateau(gamma=0.5, patience=1, cooldown=1, threshold=0.2, threshold_mode="abs"),
            lambda o: SCHEDULERS.ReduceLROnPlateau(o, "max", 0.5, 1, 0.2, "abs", 1),
            "max",
        ),
        (
            TorchSchedule(SCHEDULERS.ReduceLROnPlateau, factor=0.5, patience=0),
            lambda o: SCHEDULERS.ReduceLROnPlateau(o, "max", 0.5, 0),
            "max",
        ),
        (
            SequentialLR((LinearLR(0.1, 1.0, 2), ExponentialLR(0.5), CosineRestarts(1)), (2, 4)),
            lambda o: SCHEDULERS.SequentialLR(
                o,
                [
                    SCHEDULERS.LinearLR(o, 0.1, 1.0, 2 * STEPS),
                    SCHEDULERS.StepLR(o, STEPS, 0.5),
                    SCHEDULERS.CosineAnnealingWarmRestarts(o, STEPS),
                ],
                [2 * STEPS, 4 * STEPS],
            ),
            "step",
        ),
        (
            WarmUp(StepLR(2, 0.5), epochs=1),
            lambda o: SCHEDULERS.SequentialLR(
                o,
                [SCHEDULERS.LinearLR(o, 1 / STEPS, 1.0, STEPS - 1), SCHEDULERS.StepLR(o, 2 * STEPS, 0.5)],
                [STEPS],
            ),
            "step",
        ),
        (
            TorchSchedule(SCHEDULERS.OneCycleLR, max_lr=0.5, cycle_momentum=False, every="step"),
            lambda o: SCHEDULERS.OneCycleLR(o, 0.5, STEPS * EPOCHS, cycle_momentum=False),
            "step",
        ),
        (
            TorchSchedule(
                SCHEDULERS.CyclicLR, base_lr=0.01, max_lr=0.5, step_size_up=5, cycle_momentum=False, every="step"
            ),
            lambda o: SCHEDULERS.CyclicLR(o, 0.01, 0.5, 5, cycle_momentum=False),
            "step",
        ),
        (
            TorchSchedule(SCHEDULERS.CosineAnnealingLR, T_max=EPOCHS, eta_min=0.01),
            lambda o: SCHEDULERS.CosineAnnealingLR(o, EPOCHS, 0.01),
            "epoch",
        ),
    ],
    ids=lambda value: None if callable(value) else str(value),
)
def test_a_schedule_has_the_rates_of_torchs(ours: Schedule, theirs: Callable, every: str) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.3, momentum=0.9)
    scheduler, seen, rates, found = theirs(optimizer), [], [], []
    for step in range(STEPS * EPOCHS):
        rates.append(optimizer.param_groups[0]["lr"])
        found.append(ours.lr(0.3, step, STEPS, EPOCHS, History(tuple(seen), every == "max")))
        optimizer.step()
        if every == "step":
            scheduler.step()
        elif (step + 1) % STEPS == 0:
            value = VALUES[step // STEPS]
            seen.append((step + 1, value))
            scheduler.step(*([math.nan if value is None else value] if every in ("min", "max") else []))
    assert found == pytest.approx(rates, rel=1e-9, abs=1e-12) and len({*rates}) > 1
    whole = History(tuple(seen), every == "max")
    again = [ours.lr(0.3, step, STEPS, EPOCHS, whole) for step in reversed(range(STEPS * EPOCHS))]
    assert again[::-1] == found, "a function of the step, and of the validations before it"


def test_a_plateau_after_a_warm_up_counts_from_there() -> None:
    plateau = Plateau(gamma=0.5, patience=0)
    history = History(((7, 1.0), (14, 2.0), (21, 3.0)))
    assert [WarmUp(plateau, epochs=2).lr(0.4, step, 7, 9, history) for step in (0, 13, 14, 21)] == [
        pytest.approx(rate) for rate in (0.4 / 14, 0.4, 0.4, 0.4)
    ]
    assert WarmUp(plateau, epochs=1).lr(0.4, 21, 7, 9, history) == 0.2


def test_a_fraction_of_an_epoch_is_a_number_of_steps() -> None:
    assert [PolynomialLR().factor(step, 10, 0.5) for step in (0, 4, 5)] == pytest.approx([1.0, 0.2, 0.0])
    assert MultiStepLR((0.5, 1.25), 0.1).factor(13, 10, 2) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: MultiStepLR((3, 2)), "milestones = .* above 0 and in rising order"),
        (lambda: MultiStepLR(()), "milestones"),
        (lambda: Plateau(gamma=1.0), "gamma = 1.0 is out of range, in Plateau; give a value between 0 and 1"),
        (lambda: SequentialLR((StepLR(),), (2,)), "1 schedules need 0 milestones between them, got 1"),
        (lambda: WarmUp(StepLR(), epochs=0), "epochs = 0"),
        (lambda: TorchSchedule(SCHEDULERS.OneCycleLR, max_lr=0.5).lr(0.1, 0, 7, 6), "give it cycle_momentum=False"),
        (
            lambda: TorchSchedule(SCHEDULERS.ReduceLROnPlateau, mode="max").lr(0.1, 0, 7, 6),
            "looks for the max of task.monitor, whose best value is the min",
        ),
        (lambda: TorchSchedule(SCHEDULERS.ChainedScheduler), r"takes a list .*; write `def my_schedule\(optimizer\)`"),
        (
            lambda: TorchSchedule(SCHEDULERS.ReduceLROnPlateau, every="step").lr(0.1, 0, 7, 6),
            "ReduceLROnPlateau is stepped after validations, not after steps",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused(build: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build()
