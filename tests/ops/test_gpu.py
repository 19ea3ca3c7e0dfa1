from contextlib import contextmanager

import pytest
import torch

from selhn.ops import side_by_side
from selhn.ops.gpu import add_wide_product, fusable
from selhn.training.capture import recording_stream


def test_both_are_computed():
    assert side_by_side(lambda: 1, lambda: "b") == (1, "b")


@pytest.mark.gpu
def test_two_branches_of_a_recording():
    x = torch.randn(64, 64, device="cuda", requires_grad=True)
    w = torch.randn(64, 64, device="cuda", requires_grad=True)

    def step():
        x.grad = w.grad = None
        a, b = side_by_side(lambda: (x @ x).relu(), lambda: (w @ w).tanh())
        total = (a * b).sum()
        total.backward()
        return total

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        expected = [step().detach().clone(), x.grad.clone(), w.grad.clone()]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            total = step()
        graph.replay()
        torch.cuda.synchronize()
    assert all(torch.allclose(a, b) for a, b in zip(expected, [total, x.grad, w.grad]))


def test_a_cpu_needs_no_triton():
    assert not fusable(torch.zeros(1))


@pytest.mark.gpu
def test_branches_of_branches_do_not_overwrite_what_another_still_reads():
    # What a branch of the first branch made is freed while the first still reads it; the second then needs memory.
    x = torch.randn(2048, 2048, device="cuda")

    def make():
        return x @ x

    def first():
        made, _ = side_by_side(make, lambda: None)
        torch.cuda._sleep(2_000_000)
        return made.square().mean()

    def second():
        return [torch.full_like(x, torch.nan) for _ in range(4)]

    for _ in range(40):
        with recording_stream(x.device):
            expected = (x @ x).square().mean()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                total, _ = side_by_side(first, second)
            graph.replay()
            torch.cuda.synchronize()
            assert torch.allclose(total, expected, rtol=1e-3)


class FakeStream:
    """As PyTorch has them: 32 of a device, handed out over and over."""

    drawn = 0
    device = torch.device("cuda", 0)

    def __init__(self, device=None):
        self.number = FakeStream.drawn % 32
        FakeStream.drawn += 1

    def __eq__(self, other):
        return self.number == other.number

    def __hash__(self):
        return self.number

    def wait_stream(self, other):
        pass


@pytest.fixture
def recorded(monkeypatch):
    """A GPU whose current stream is always being recorded."""
    stack = [FakeStream()]

    @contextmanager
    def stream(entered):
        stack.append(entered)
        yield
        stack.pop()

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: stack[-1])
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr("selhn.ops.gpu._own", type("Own", (), {"streams": {}, "path": ()})())
    monkeypatch.setattr("selhn.ops.gpu._everyones", set())
    return stack


def streams_of_a_step():
    """The streams of two branches that have two branches each, as in a step with pooled images and texts."""
    seen = [torch.cuda.current_stream()]

    def look():
        seen.append(torch.cuda.current_stream())

    def branch():
        look()
        side_by_side(look, look)

    side_by_side(branch, branch)
    return seen


def test_no_two_branches_of_a_step_share_a_stream_however_many_runs_there_were(recorded):
    for run in range(70):
        with recording_stream(torch.device("cuda")):
            streams = streams_of_a_step()
        assert len(streams) == len(set(streams)) == 7, run
        FakeStream.drawn += run % 5  # others take streams too


def test_who_records_on_a_stream_of_ours_gets_one_piece_of_work_after_the_other(recorded):
    with recording_stream(torch.device("cuda")):
        *_, ours = streams_of_a_step()
    with torch.cuda.stream(ours):
        assert set(streams_of_a_step()) == {ours}
    with torch.cuda.stream(FakeStream()):
        pass
    assert side_by_side(lambda: 1, lambda: 2) == (1, 2)


def test_a_branch_that_fails_leaves_nothing_behind(recorded):
    def fail():
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        side_by_side(lambda: side_by_side(fail, fail), lambda: None)
    with recording_stream(torch.device("cuda")):
        assert len(set(streams_of_a_step())) == 7


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_what_half_precision_loses_of_a_factor_is_multiplied_too(half, monkeypatch):
    monkeypatch.setattr("selhn.ops.gpu.wide_product", lambda a, b: a.float() @ b.float())
    generator = torch.Generator().manual_seed(0)
    weights = 1e-9 * torch.randn(40, 30, generator=generator)  # float16 would make 0 of them
    emb, total = torch.randn(30, 8, generator=generator).to(half), torch.zeros(40, 8)
    add_wide_product(total, weights, emb)
    exact = weights.double() @ emb.double()
    near = 2**-13 * exact.abs().max().item()
    torch.testing.assert_close(total.double(), exact, rtol=0, atol=near)
    assert (weights.to(half).double() @ emb.double() - exact).abs().max() > near, "one part is not enough"
