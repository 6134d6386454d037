"""What is said of a library's cliff between 8 and 9 rows."""

from xshare.tune.cpu_products import cliff_text, product_ms


def test_a_cliff_that_goes_without_onednn_is_named():
    text = cliff_text(below=1.0, above=10.0, without=1.2)
    assert text is not None
    assert "9 rows takes 10.0 times as long as one of 8 here with oneDNN, and 1.2 times without" in text
    assert "torch.backends.mkldnn.enabled = False" in text


def test_nothing_is_said_where_there_is_none_or_nothing_helps():
    assert cliff_text(below=1.0, above=1.3, without=1.3) is None
    assert cliff_text(below=1.0, above=5.0, without=4.0) is None


def test_a_product_takes_time_and_leaves_the_setting_as_it_was():
    import torch

    before = torch.backends.mkldnn.enabled
    assert product_ms(1, not before, repeats=1) > 0
    assert torch.backends.mkldnn.enabled == before
