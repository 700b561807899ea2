import pytest
import torchvision
from torch import nn

from advisor.inlined.blocks import blocks_to_compile, repeated_blocks, shape_of


class Block(nn.Module):
    def __init__(self, width=4, experts=0):
        super().__init__()
        self.a, self.b = nn.Linear(width, width), nn.Linear(width, width)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(experts))


class Stage(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.blocks = nn.Sequential(*(Block(width) for _ in range(depth)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(Block(experts=3) for _ in range(5))
        self.head = nn.Linear(4, 8)


def sequential_blocks():
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(3)), nn.Linear(4, 2))


MODELS = {
    "layers rather than experts": (Decoder, (("Block", 5),)),
    "blocks rather than stages": (lambda: nn.Sequential(Stage(4, 2), Stage(8, 3)), (("Block", 5),)),
    "stages that are alike": (lambda: nn.Sequential(Stage(4, 2), Stage(4, 2)), (("Stage", 2),)),
    "plain Sequentials": (sequential_blocks, (("Sequential", 3),)),
    "PyTorch's own layers": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 3, enable_nested_tensor=False),
        (("TransformerEncoderLayer", 3),),
    ),
    "the layers of one kind in several stages": (torchvision.models.resnet18, (("BasicBlock", 8),)),
    "a subclass of ModuleDict": (torchvision.models.densenet121, (("_DenseLayer", 58), ("_Transition", 3))),
    "none": (lambda: nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)), ()),
    "one and the same": (lambda: nn.Sequential(*[Block()] * 6), ()),
    "a bare layer": (lambda: nn.Linear(2, 2), ()),
}
each_model = pytest.mark.parametrize(("make", "expected"), MODELS.values(), ids=MODELS)


@each_model
def test_the_blocks_that_a_model_repeats(make, expected):
    assert tuple((type(group[0][1]).__name__, len(group)) for group in repeated_blocks(make())) == expected


def convolutions_and_layers():
    layer = nn.TransformerEncoderLayer(8, 2, 16)
    return nn.Sequential(torchvision.models.resnet18(), nn.TransformerEncoder(layer, 3, enable_nested_tensor=False))


@pytest.mark.parametrize(
    ("make", "shapes"),
    [
        (Decoder, 1),
        (lambda: nn.Sequential(Stage(4, 2), Stage(8, 3)), 2),
        (torchvision.models.resnet18, 7),
        (torchvision.models.swin_t, 4),
        (convolutions_and_layers, 1),
        (lambda: nn.Linear(2, 2), 0),
    ],
)
def test_blocks_of_one_class_that_differ_in_shape_are_of_several_kinds(make, shapes):
    assert len({shape_of(block) for block in blocks_to_compile(make())}) == shapes


def test_blocks_that_are_alike_are_compiled_beside_others_that_are_not():
    """As of a transformer behind a convolutional network."""
    compiled = blocks_to_compile(convolutions_and_layers())
    assert [type(block) for block in compiled] == [nn.TransformerEncoderLayer] * 3
    few = nn.ModuleList(nn.TransformerDecoderLayer(8, 2, 16) for _ in range(2))
    both = nn.ModuleList([nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16), 4), few])
    assert len(blocks_to_compile(both)) == 6
    every = blocks_to_compile(torchvision.models.resnet18())
    assert [type(block).__name__ for block in every] == ["BasicBlock"] * 8


def test_blocks_come_with_their_names_and_the_largest_first():
    model = torchvision.models.swin_t()
    groups = repeated_blocks(model)
    assert [type(group[0][1]).__name__ for group in groups] == ["SwinTransformerBlock", "PatchMerging"]
    assert len(groups[0]) == 12
    for name, block in groups[0]:
        assert model.get_submodule(name) is block
