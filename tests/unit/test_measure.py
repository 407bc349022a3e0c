"""Latency in turns on one thread; peak memory written out, and as torch's profiler adds it up."""

import time

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from ovo_clinic.fusion.ovo import Ovo
from ovo_clinic.measure import latencies, peak_memory
from ovo_clinic.registry import Choice
from ovo_clinic.types import Modality, Tokens


def test_latencies_are_medians_of_calls_in_turn() -> None:
    order: list[str] = []
    threads = torch.get_num_threads()

    def call(name: str, seconds: float) -> None:
        assert torch.get_num_threads() == 1
        # The third turn is an outlier, which a median leaves out.
        time.sleep(0.2 if order.count(name) == 3 else seconds)
        order.append(name)

    short, long = latencies([lambda: call("a", 0.005), lambda: call("b", 0.05)], repeats=5)
    assert order == ["a", "b"] * 6
    assert 0.005 <= short < 0.05 <= long < 0.2
    assert torch.get_num_threads() == threads


def test_a_slow_call_gets_one_turn() -> None:
    calls: list[int] = []
    latencies([lambda: calls.append(1) or time.sleep(0.02)], repeats=100, seconds=0.01)
    assert len(calls) == 2


def test_peak_memory_of_a_chain() -> None:
    x = torch.ones(1000)

    def chain() -> None:
        y = x * 2  # 4000 bytes
        z = y + 1  # 8000
        z.view(10, 100).mul_(2)  # a view and a change in place make nothing
        del y  # 4000
        w = z * 3  # 8000
        assert (w * w).shape == (1000,)  # 12000

    assert peak_memory(chain) == 12_000


def test_peak_memory_counts_what_backward_keeps() -> None:
    x = torch.ones(1000, requires_grad=True)
    without = peak_memory(lambda: torch.exp(torch.exp(torch.exp(x.detach()))))
    with_graph = peak_memory(lambda: torch.exp(torch.exp(torch.exp(x))))
    assert (without, with_graph) == (8_000, 12_000)


@pytest.mark.parametrize("attention", ["softmax", "performer", "nystrom"])
def test_peak_memory_is_that_of_the_profiler(attention: str) -> None:
    modalities = [Modality(f"m{i}", "vector", 16) for i in range(3)]
    head = Ovo(16, modalities, attention=Choice(name=attention))
    tokens = {m.name: Tokens(torch.randn(32, 1, 16), torch.ones(32, 1, dtype=torch.bool)) for m in modalities}

    def step() -> None:
        torch.autograd.grad(head(tokens).square().sum(), list(head.parameters()))

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        step()
    events = profiled.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    total = peak = 0
    for _, size in changes:
        total += size
        peak = max(peak, total)
    assert peak_memory(step) == pytest.approx(peak, rel=0.01)
