import torch

from trainer.decoding.kv_cache import SPARE_COLUMNS, KVCacheLayer, empty_cache, join

HEADS, WIDTH = 2, 3


def numbered(batch: int, columns: int, first: int) -> torch.Tensor:
    """Keys [batch, heads, columns, 3] whose numbers tell row and column: 100 * row + column, from `first` on."""
    row_B, column_T = torch.arange(batch) * 100.0, torch.arange(columns) + float(first)
    return (row_B[:, None, None, None] + column_T[None, None, :, None]).expand(batch, HEADS, columns, WIDTH).contiguous()


def test_columns_are_appended_in_place_as_long_as_there_is_room() -> None:
    layer = KVCacheLayer()
    layer.update(numbered(2, 4, 0), -numbered(2, 4, 0))
    places = set()
    for column in range(4, 4 + SPARE_COLUMNS + 1):
        keys, values = layer.update(numbered(2, 1, column), -numbered(2, 1, column))
        places.add(keys.data_ptr())
        assert torch.equal(keys, numbered(2, column + 1, 0))
        assert torch.equal(values, -keys)
        assert layer.get_seq_length() == column + 1
        assert layer.get_mask_sizes(1) == (column + 2, 0)
    assert len(places) == 2, "room for 64 more, and then new room"


def test_rows_join_at_their_newest_column() -> None:
    caches = []
    for batch, columns in ((3, 5), (2, 2)):
        cache = empty_cache()
        for layer in range(2):
            cache.update(numbered(batch, columns, 10 * layer), -numbered(batch, columns, 10 * layer), layer)
        caches.append(cache)
    joined = join([(caches[0], torch.tensor([2, 0])), (caches[1], torch.tensor([1]))], 4)
    assert joined.get_seq_length() == 4
    for layer in range(2):
        keys = joined.layers[layer].keys[:, 0, :, 0] - 10 * layer
        assert keys[:2].tolist() == [[201, 202, 203, 204], [1, 2, 3, 4]], "the oldest column is cut off"
        assert keys[2, 2:].tolist() == [100, 101]
        assert joined.layers[layer].keys[2, :, :2].abs().sum() == 0
        assert torch.equal(joined.layers[layer].values, -joined.layers[layer].keys)


def test_a_joined_cache_goes_on() -> None:
    cache = empty_cache()
    cache.update(numbered(2, 3, 0), numbered(2, 3, 0), 0)
    joined = join([(cache, torch.tensor([1]))], 3)
    keys, _ = joined.update(numbered(1, 1, 103), numbered(1, 1, 103), 0)
    assert keys[0, 0, :, 0].tolist() == [100, 101, 102, 103]
