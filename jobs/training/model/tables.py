"""Reads transformers' tables of models and tokenizers from its source, which takes no torch.

Importing them takes seconds, and validating a job must not. A table that a later release of
transformers writes otherwise is empty here; training checks a base by transformers itself.
"""

import ast
import functools
import importlib.util
import re
from pathlib import Path

MODELS, TOKENIZERS = "modeling_auto.py", "tokenization_auto.py"
"""Files of `transformers.models.auto`."""
TOKENIZER_TABLE = "TOKENIZER_MAPPING_NAMES"
PYTHON_BASES = ("PreTrainedTokenizer", "PythonBackend", "SentencePieceBackend")
"""Classes whose subclasses are tokenizers written in Python."""
TOKENIZER = re.compile(r"^class (\w+)\((\w+)\)", re.MULTILINE)


def model_types(auto_class: str) -> frozenset[str]:
    """Returns the model types that an auto class of transformers loads; empty if it is unknown."""
    return _model_types().get(auto_class, frozenset())


@functools.cache
def tokenizers() -> dict[str, str]:
    """Returns the name of the tokenizer class of each model type."""
    values = _assigned(_parsed(TOKENIZERS)).get(TOKENIZER_TABLE)
    return _entries(values) if values is not None else {}


def is_python_tokenizer(name: str, kind: str) -> bool:
    """Returns whether a tokenizer class is written in Python; a model of type `kind` names it.

    The class is looked for beside the type's own model first, which spares reading all files.
    """
    module = kind.replace("-", "_")
    own = _tokenizer_bases(module) if module.isidentifier() else {}
    return (own if name in own else _tokenizer_bases("*")).get(name) in PYTHON_BASES


@functools.cache
def _tokenizer_bases(models: str) -> dict[str, str]:
    """Returns the base of each tokenizer class in the folders of models that match a pattern."""
    folder = _folder()
    files = folder.glob(f"models/{models}/tokenization_*.py") if folder else ()
    texts = (path.read_text(encoding="utf-8") for path in files)
    return {name: base for text in texts for name, base in TOKENIZER.findall(text)}


@functools.cache
def _model_types() -> dict[str, frozenset[str]]:
    """Returns the model types of each auto class.

    Each class names its mapping, each mapping its table, and the table lists the types.
    """
    tree = _parsed(MODELS)
    values, found = _assigned(tree), {}
    for auto in tree.body:
        if isinstance(auto, ast.ClassDef):
            mapping = _assigned(auto).get("_model_mapping")
            names = values.get(mapping.id) if isinstance(mapping, ast.Name) else None
            table = names.args[-1] if isinstance(names, ast.Call) and names.args else None
            listed = values.get(table.id) if isinstance(table, ast.Name) else None
            found[auto.name] = frozenset(_entries(listed)) if listed is not None else frozenset()
    return found


def _entries(table: ast.expr) -> dict[str, str]:
    """Returns the pairs of text in `OrderedDict([(key, value), ...])`.

    Of a value that depends on an installed package, the one with the package is taken.
    """
    found = {}
    match table:
        case ast.Call(args=[ast.List(elts=pairs)]):
            for pair in pairs:
                match pair:
                    case ast.Tuple(elts=[ast.Constant(value=key), value]):
                        value = value.body if isinstance(value, ast.IfExp) else value
                        name = value.value if isinstance(value, ast.Constant) else None
                        found[str(key)] = str(name or "")
    return found


def _assigned(tree: ast.Module | ast.ClassDef) -> dict[str, ast.expr]:
    """Returns the values that names are assigned in a module or a class."""
    return {
        target.id: statement.value
        for statement in tree.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _parsed(name: str) -> ast.Module:
    folder = _folder()
    path = folder / "models/auto" / name if folder else None
    if path is None or not path.is_file():
        return ast.Module([], [])
    return ast.parse(path.read_text(encoding="utf-8"))


def _folder() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    return Path(spec.origin).parent if spec and spec.origin else None
