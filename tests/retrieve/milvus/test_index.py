"""An index in Milvus answers as the exact one does, whatever is done to both."""


def test_the_same_answers_as_the_exact_index(remote, exact, make_item, same_answers):
    regions = make_item(77).regions
    for find in ("image", "text"):
        assert same_answers(remote, exact, "word3 word8", 7, find)
        assert same_answers(remote, exact, text="word3 word8", like="item4", weights={"text": 2, "like": -1}, find=find)
    same_answers(remote, exact, image=regions)
    same_answers(remote, exact, image=regions, text="word5", find="image")
    same_answers(remote, exact, like="item4", k=100)
    assert len(remote) == 20
    assert remote.num_texts == exact.num_texts == 40
