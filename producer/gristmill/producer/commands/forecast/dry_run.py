"""`--dry-run`: count the tokens of a checked input, and report what a run would do."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from gristmill.producer.commands.forecast.estimates import Estimate, in_short
from gristmill.producer.commands.forecast.forecast_options import ForecastOptions
from gristmill.producer.commands.forecast.row_sample import random_rows, requests_of_rows
from gristmill.producer.commands.forecast.token_limits import (
    ModelLengths,
    most_output,
    num_outputs,
)
from gristmill.producer.commands.session import print_json
from gristmill.producer.commands.submit_options import SubmitOptions
from gristmill.producer.commands.waited_run import CheckedRun
from gristmill.shared.answers import mapping
from gristmill.shared.cli import say
from gristmill.shared.errors import InvalidRequest
from gristmill.shared.fleet import Fleet
from gristmill.shared.request import Request

if TYPE_CHECKING:
    from gristmill.producer.commands.forecast.model_tokenizer import ModelTokenizer

MAX_COUNTED = 10_000
"""Rows that are counted one by one, in some seconds. A larger input has this many drawn at random."""

ESTIMATE = "estimated as a quarter of the bytes of the bodies; --tokenizer FOLDER counts them"
"""Description of the count without a tokenizer."""


class TokenCounter:
    """Counts prompt tokens with a tokenizer, or estimates them.

    Args:
        options: Options that may name a tokenizer.

    Attributes:
        how: Description of the count, for people.
        problem: Why the chat template has refused messages; "" if it has not.

    Raises:
        InvalidRequest: The user has named a tokenizer that cannot be had.
    """

    def __init__(self, options: ForecastOptions) -> None:
        self.how, self.problem = ESTIMATE, ""
        self._tokenizer = self._opened(options)
        if self._tokenizer:
            self.how = f"counted with the tokenizer of {self._tokenizer.source}, without images"

    def _opened(self, options: ForecastOptions) -> "ModelTokenizer | None":
        if options.tokenizer is None and options.model is None:
            return None
        from gristmill.producer.commands.forecast.model_tokenizer import ModelTokenizer

        if options.tokenizer is not None:
            return ModelTokenizer(options.tokenizer)
        own = options.model
        try:
            return ModelTokenizer(own.tokenizer, own.revision) if own else None
        except InvalidRequest as error:
            self.how = f"{ESTIMATE} ({error})"
            return None

    @property
    def is_exact(self) -> bool:
        """True if a tokenizer counts."""
        return self._tokenizer is not None

    def count(self, request: Request, body: Mapping[str, Any]) -> int:
        """Return the tokens of a prompt."""
        tokens = None
        if self._tokenizer is not None:
            try:
                tokens = self._tokenizer.prompt_tokens(request, body)
            except InvalidRequest as error:
                self.problem = self.problem or str(error)
        return request.prompt_tokens if tokens is None else tokens


@dataclass(slots=True)
class TokenCensus:
    """Tokens of the counted requests.

    Attributes:
        prompt: Prompt tokens of each.
        output: Most output tokens of each.
        unbounded: Requests whose output nothing limits, as far as is known.
        too_long: Numbers of the rows that have more tokens than their model allows.
        max_model_len: Fewest tokens that their models allow; None if not known.
    """

    prompt: list[int] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    unbounded: int = 0
    too_long: list[int] = field(default_factory=list)
    max_model_len: int | None = None

    def add(self, row: int, request: Request, counter: TokenCounter, lengths: ModelLengths) -> None:
        """Count the request of a row."""
        body = mapping(orjson.loads(request.body))
        prompt, most = counter.count(request, body), most_output(request, body)
        allowed = lengths.tokens(request.model)
        if allowed is not None:
            self.max_model_len = min(allowed, self.max_model_len or allowed)
            if prompt + (1 if most is None else most) > allowed:
                self.too_long.append(row)
            most = max(0, allowed - prompt) if most is None else most
        self.prompt.append(prompt)
        self.unbounded += most is None
        self.output.append((most or 0) * num_outputs(body))


class DryRun:
    """One dry run.

    Args:
        run: The checked run.
        options: Options of the command.
        fleet: Models of the live workers; None without a queue.
    """

    def __init__(self, run: CheckedRun, options: SubmitOptions, fleet: Fleet | None) -> None:
        self._run = run
        self._options = options.forecast
        self._fleet = fleet
        self._as_json = options.as_json

    def execute(self) -> int:
        """Print the report; return 0 if no row is known to fail, else 1.

        Raises:
            InvalidRequest: The user has named a tokenizer that cannot be had.
        """
        counter = TokenCounter(self._options)
        census = self._census(counter)
        facts = self._facts(census, counter)
        if self._as_json:
            print_json(facts)
        for line in report_lines(facts):
            say(line)
        is_too_long = counter.is_exact and facts["too_long"]
        return 1 if facts["failing"] or is_too_long else 0

    def _census(self, counter: TokenCounter) -> TokenCensus:
        census, rows = TokenCensus(), self._run.report.num_lines
        lengths = ModelLengths.of(self._fleet, self._options.model)
        chosen = random_rows(rows, MAX_COUNTED)
        for row, request in requests_of_rows(self._run.batch_input, rows, chosen):
            census.add(row, request, counter, lengths)
        return census

    def _facts(self, census: TokenCensus, counter: TokenCounter) -> dict[str, Any]:
        """Return what the report has, for a program."""
        run, num, counted = self._run, self._run.num_requests, len(census.prompt)
        prompt = Estimate.of_total(census.prompt or [0], num)
        output = Estimate.of_total(census.output or [0], num)
        marks = [0] * (counted - len(census.too_long)) + [1] * len(census.too_long)
        totals = run.source.totals(run.report)
        return {
            "run": run.record.run, "queue": run.record.queue,
            "rows": run.report.num_lines, "requests": num,
            "duplicates": totals.get("copies", 0),
            "nulls": totals.get("nulls", 0),
            "bad": run.report.num_bad, "failing": run.num_failing,
            "counted_requests": counted, "is_sample": counted < num,
            "has_tokenizer": counter.is_exact, "counted_how": counter.how,
            "prompt_tokens": prompt.facts(),
            "mean_prompt_tokens": round(prompt.value / max(1, num), 1),
            "longest_prompt_tokens": max(census.prompt, default=0),
            "max_output_tokens": None if census.unbounded else output.facts(),
            "max_model_len": census.max_model_len,
            "too_long": round(Estimate.of_total(marks or [0], num).value), "too_long_rows": census.too_long[:10],
            "template_problem": counter.problem or None,
        }  # fmt: skip


def report_lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the report for people."""
    yield f"{facts['requests']:,} of {facts['rows']:,} rows are requests{_others(facts)}"
    if facts["is_sample"]:
        yield f"the tokens are those of {facts['counted_requests']:,} requests, drawn at random"
    prompt = Estimate(**facts["prompt_tokens"])
    yield (
        f"prompt tokens: {prompt.in_words}, {facts['mean_prompt_tokens']:,} a request, the longest"
        f" {facts['longest_prompt_tokens']:,}; {facts['counted_how']}"
    )
    if facts["max_output_tokens"] is None:
        yield "output tokens: without a limit; set max_tokens in the requests, for a table in --params"
    else:
        yield f"output tokens: at most {Estimate(**facts['max_output_tokens']).in_words}"
    yield _lengths(facts)
    if facts["template_problem"]:
        yield f"estimated where it failed: {facts['template_problem']}"
    yield "nothing was started or submitted"


def _others(facts: Mapping[str, Any]) -> str:
    """Return what the other rows are."""
    words = {"duplicates": "copies", "nulls": "nulls", "bad": "refused"}
    parts = [f"{text}: {facts[name]:,}" for name, text in words.items() if facts[name]]
    return f"; {', '.join(parts)}" if parts else ""


def _lengths(facts: Mapping[str, Any]) -> str:
    if facts["max_model_len"] is None:
        return "how many tokens the model allows is not known"
    allowed = f"the model allows {facts['max_model_len']:,} tokens a request, prompt and output"
    if not facts["too_long"]:
        return f"{allowed}; no counted request has more"
    rows = ", ".join(f"{row:,}" for row in facts["too_long_rows"])
    return f"{allowed}; {in_short(facts['too_long'])} have more, such as rows {rows}"
