package main

import "apr/internal/cli"

// topics are the subjects of apr help TOPIC.
var topics = []cli.Topic{
	{Name: "data", Short: "Files, records and data sets to train on", Command: "distill", Groups: []string{groupData}, Text: topicData},
	{Name: "formats", Short: "Model files that are read and written", Text: topicFormats},
	{Name: "teachers", Short: "What can teach, and how a GPU computes it", Command: "distill", Groups: []string{groupTeacher, groupLoss}, Text: topicTeachers},
	{Name: "runs", Short: "What a run is, where it is kept, and what to do with it"},
}

const topicData = `--data takes files and folders, and data sets of a hub. A record is a document; a conversation is a document whose
assistant turns alone are learned.

Files:
  .txt, .md, no ending   one text, UTF-8 (of all files; a byte order mark at the start is passed over)
  .jsonl, .ndjson        one JSON object a line
  .json                  the same, or one array of objects
  .parquet               one row a record
  .csv, .tsv             a first line of column names, recognised as the fields of records are, but for lists; or --text-field
  a folder               every file below it: .jsonl and .parquet as records, others as texts;
                         hidden files, links, vendor and node_modules are left out
Each file but Parquet may be compressed: .gz, .zst, .xz.

Records are recognised by their fields, the first of these that a record has:
  text, content          a text
  messages               a conversation: [{"role": …, "content": …}, …]
  conversations          ShareGPT: [{"from": "human", "value": …}, {"from": "gpt", …}, …]
  prompt, completion     a question and its answer, which distill --on-policy 1 does not need
    teacher_prompt         beside prompt: what the teacher alone reads in its place (distill --on-policy 1)
  instruction, output    Alpaca; input, if it is not empty, follows the instruction
--text-field and --messages-field name other fields. A bad record (also one with NUL, as \u0000 too) is left out and named by file and line;
more than 1 in 1,000 are an error.

Data sets of a hub: hf://datasets/ORG/NAME downloads its .parquet, or else its .jsonl and .json files, into the cache of models.
  hf://datasets/ORG/NAME@REVISION           a branch, a tag or a commit
  hf://datasets/ORG/NAME/FILE               one file
  hf://datasets/ORG/NAME/data/train-*.parquet  the files that match a pattern

Held out for evaluation: 1 % of the documents, chosen by their hash. Where that is less than 32 windows of --seq-len tokens, as many documents as
32 windows take, or a fifth of the tokens gives; of long documents, and of a single one, the tail, cut in whole windows. The rest of a document that is
cut is trained on; no token is in both. --val-fraction holds out a fraction of the documents, without cutting any; --eval-data names other text, and
text that is in both is an error.
Why 32: a score's 95 % interval is ± t × s / √n over n windows. With 32 windows t is 2.04 (1.96 for infinitely many) and the interval's own width is known
to 13 %; with 4 windows t is 3.18 and the width known to 41 %. Verdicts need 16 windows (t 2.13, 18 %).`

const topicFormats = `A model argument is a file, a folder, a run (its directory or the beginning of its name: the student that it trained), or a model of
a hub: org/name or hf://org/name[@REVISION][/FILE]. The content decides what a file is, not its name.

Read:
  a folder       config.json, safetensors, tokenizer.json: as Hugging Face's programs write it
  .safetensors   with config.json and the tokenizer beside it
  .gguf          every block type of llama.cpp that apr tensors lists; blocks are kept as they are
  .apr           weights, configuration and tokenizer in one file
Not read: pytorch_model.bin, .pt and .pth. They are pickles: programs that run when they are opened. Convert them once with transformers:
  AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(OUT, safe_serialization=True)

Written, by which command:
  apr export     leaves apr: a GGUF file for llama.cpp and ollama, a folder for transformers
  apr convert    another format, the same values
  apr quantize   smaller, with the rounding error of every type
  apr import     a model of another program as one .apr file, checked
Look into them: apr inspect, apr tensors, apr validate, apr diff.`

const topicTeachers = `Any model that apr reads can teach: see apr help formats. Teacher and student need the same tokenizer; different ones are exit 5. A student
made by --student-config takes the teacher's.

A quantised teacher, such as a Q4_K_M GGUF, stays quantised in memory. On a GPU --teacher-backend says how its matrices are computed:
  cublas   expanded once to bf16: more memory, fast for many rows
  q4k      kept as blocks, decoded within each product: least memory
  stream   layers stay in page-locked host memory, as blocks, and are fetched one after the other
  auto     cublas and q4k are timed where both fit, stream is taken where neither does, and the choice is recorded
With stream all rows of a step, or of a pass of --stage precompute, go through a layer before the next comes: the
more rows, the less it costs. apr plan says how many bytes are fetched, and how long that takes at an assumed rate.
--teacher-experts host leaves the experts of a quantised teacher in page-locked host memory, for one that fits the host but not the card: each step
fetches them all, and apr plan says how many bytes and at which assumed rate. It is never chosen by itself.
On a CPU blocks are decoded panel by panel, and small teachers are expanded.

apr plan says before a run whether teacher and student fit and how long a step takes. The loss weighs the teacher against the text:
  loss = (1-alpha)·CE(text) + alpha·T²·KL(teacher ‖ student)
--control ce also trains an identical student without the teacher, so that the report shows what the teacher was worth.`

// topicRuns is the help of apr runs.
const topicRuns = `A run is a folder, by default runs/TIME ($APR_RUNS_DIR), or -o of apr distill. A command takes its path, its name, or the beginning of
its name.
  manifest.json   what was asked: command, settings with their origins, hashes of the inputs, versions, devices
  steps.jsonl     every step: loss, KL, CE, gradient norm, learning rate, times
  events.jsonl    decisions with their reasons, evaluations, warnings
  checkpoints/    weights, optimiser and data position: what --resume goes on from
  student.apr, student/  the student, as one file and as a Hugging Face folder
  adapter/        of --lora: the adapter, as PEFT loads it
  report.html     verdict, curves, scores: one file, which opens without a network
  receipt.json    how it ended, with the hashes of what it wrote; written last
A run is running, completed, stopped (by a signal) or failed (by an error, or killed). runs resume goes on with both of the
latter from the last checkpoint. apr verify recomputes what a run wrote down.
The line of progress has step, loss, KL from the teacher, CE of the text, |g| (norm of the gradient), lr (learning rate), MFU
(share of the device's peak that the model's own arithmetic takes), tokens/s and the time left, as many as fit.`
