import pytest
import torch

from selhn.ops.words import WordChanges, change_words


def make(texts, size, vocabulary=50, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (texts, size), generator=generator, dtype=torch.int32)
    lengths = torch.randint(0, size + 1, (texts,), generator=generator)
    special = torch.arange(vocabulary) < 4
    inner = torch.rand(vocabulary, generator=generator) < 0.3
    ordinary = torch.arange(vocabulary)[~special & ~inner]
    draws = torch.rand(texts, size, generator=generator)
    chosen = torch.randint(len(ordinary), (texts, size), generator=generator)
    how = WordChanges(special, inner, ordinary, mask_id=3, pad_id=0, masked=0.2, replaced=0.3, deleted=0.6)
    return (tokens, torch.arange(size) < lengths[:, None], draws, chosen), how


def one_by_one(tokens, mask, draws, chosen, how):
    changed, kept = torch.full_like(tokens, how.pad_id), torch.zeros_like(mask)
    for text in range(len(tokens)):
        row, fate = [], draws[text, 0]
        for place, token in enumerate(tokens[text].tolist()):
            fate = fate if how.inner[token] else draws[text, place]
            if not mask[text, place]:
                continue
            if how.special[token] or fate >= how.deleted:
                row.append(token)
            elif fate < how.masked:
                row.append(how.mask_id)
            elif fate < how.replaced:
                row.append(how.ordinary[chosen[text, place]].item())
        changed[text, : len(row)] = torch.tensor(row, dtype=tokens.dtype)
        kept[text, : len(row)] = True
    return changed, kept


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(("texts", "size"), [(1, 1), (7, 5), (40, 24), (3, 100)])
def test_words_change_as_drawn(texts, size, device):
    given, how = make(texts, size, seed=size)
    expected = one_by_one(*given, how)
    there = how._replace(**{name: getattr(how, name).to(device) for name in ("special", "inner", "ordinary")})
    actual = change_words(*(tensor.to(device) for tensor in given), there)
    for want, got in zip(expected, actual):
        assert torch.equal(got.cpu(), want)
        assert got.dtype == want.dtype
