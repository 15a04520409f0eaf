"""Examples for the data section of the job file, one for each task; see `reference_examples`."""

from collections.abc import Mapping

DATA_EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "data": (
        """\
data:
  train: {path: pairs.csv}
  eval: {path: pairs-eval.csv}
  text: [question, answer]
  label: is_helpful
  max_length: 256
""",
        """\
data:
  train: {path: comments.csv}
  eval: {path: comments-eval.csv}
  text: comment
  problem: multi-label
  label: topics
  separator: ","
  class_weights: balanced
""",
        """\
data:
  train: {path: ratings.csv}
  eval: {path: ratings-eval.csv}
  text: review
  problem: regression
  label: [taste, price]
  loss: huber
""",
        """\
model: {base: sentence-transformers/all-MiniLM-L6-v2, task: sentence-embedding}
data:
  train: {path: questions.csv}
  eval: {path: questions-eval.csv}
  anchor: question
  positive: answer
  dimensions: [128, 64]
""",
        """\
model: {base: sentence-transformers/all-MiniLM-L6-v2, task: sentence-embedding}
data:
  train: {path: pairs.csv}
  eval: {path: pairs-eval.csv}
  text: [first, second]
  score: similarity
  highest_score: 5
""",
        """\
model: {base: google-t5/t5-small, task: seq2seq}
data:
  train: {path: articles.jsonl}
  eval: {path: articles-eval.jsonl}
  source: article
  target: summary
  prefix: "summarize: "
""",
        """\
model: {base: bert-base-uncased, task: masked-lm}
data:
  train: {path: letters.jsonl}
  eval: {path: letters-eval.jsonl}
  text: text
  max_length: 256
""",
        """\
model: {base: HuggingFaceTB/SmolLM2-360M, task: causal-lm}
data:
  train: {path: letters.jsonl}
  eval: {path: letters-eval.jsonl}
  text: text
  max_length: 512
""",
        """\
model: {base: HuggingFaceTB/SmolLM2-360M-Instruct, task: causal-lm}
data:
  train: {path: answers.jsonl}
  eval: {path: answers-eval.jsonl}
  prompt: question
  response: answer
  max_length: 1024
""",
        """\
model: {base: HuggingFaceTB/SmolLM2-360M-Instruct, task: preference}
data:
  train: {path: preferences.jsonl}
  eval: {path: preferences-eval.jsonl}
  prompt: question
  chosen: better
  rejected: worse
""",
        """\
model: {base: bert-base-cased, task: token-classification}
data:
  train: {path: news.conll}
  eval: {path: news-eval.conll}
""",
        """\
model: {base: bert-base-cased, task: token-classification}
data:
  train: {path: letters.jsonl}
  eval: {path: letters-eval.jsonl}
  text: text
  spans: entities
""",
    ),
    "data.generate": (
        """\
model: {base: google-t5/t5-small, task: seq2seq}
data:
  train: {path: articles.jsonl}
  eval: {path: articles-eval.jsonl}
  source: article
  target: summary
  prefix: "summarize: "
  max_target_length: 96
  generate: {num_beams: 4, no_repeat_ngram_size: 3}
""",
    ),
    "data.train": (
        """\
data:
  train: {path: [2025/*.csv.gz, 2026/*.csv.gz]}
  eval: {path: nyu-mll/glue, name: sst2, split: validation}
  text: sentence
""",
    ),
}
