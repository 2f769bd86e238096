"""Sphinx: `make docs` builds the site into build/docs."""

import re

import click
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective
from sphinx.writers.html5 import HTML5Translator

import flwr_fbo
from flwr_fbo.cli.commands import load_command

project = "flwr_fbo"
author = "the authors of flwr_fbo"
version = release = flwr_fbo.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
]
# Copied are commands, without prompts and outputs.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

# NumPy docstrings, and types from the signatures, which mypy checks.
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_custom_sections = [("Formal guarantees", "notes_style")]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
# An extra that is not needed to read about it.
autodoc_mock_imports = ["torch"]
python_maximum_signature_line_length = 88

html_theme = "furo"
html_title = f"flwr_fbo {version}"
html_show_copyright = False
html_math_renderer = "mathml"


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(f"<p>{tex2mathml(node.astext(), as_block=True)}</p>")
    raise nodes.SkipNode


class CommandHelp(SphinxDirective):
    """Usage, text and options of a command of ``flwr-fbo``, from its ``--help``."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        """Return the help as paragraphs and a list."""
        name, *rest = self.arguments[0].split()
        command = load_command(name)
        for word in rest:
            assert isinstance(command, click.Group)
            command = command.commands[word]
        context = click.Context(command, info_name=f"flwr-fbo {self.arguments[0]}")
        usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
        records = [p.get_help_record(context) for p in command.params]
        rows = [one for one in filter(None, records) if one[1] != "[required]"]
        options = "\n".join(f"- `{names}`: {text}" for names, text in rows)
        page = f"```text\n{usage}\n```\n\n{command.help}\n\n{options}"
        # An option in a sentence is code: its hyphens would become a dash.
        page = re.sub(r"(`[^`]*`)|(--[a-z]+)", lambda m: m[1] or f"`{m[2]}`", page)
        return self.parse_text_to_nodes(page.replace("\\[", "["))


def setup(app: Sphinx) -> None:
    """Write formulas as MathML, which a page shows without any script or network."""
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    app.add_directive("command-help", CommandHelp)
