"""Recipes as they were in the first version, with the names that settings had then."""

BERT = """\
seed = 0

[model]
size = "base"

[examples]
pairs = "nsp"
short_share = 0.1
held_out = 50

[objective]
name = "mlm"
rate = 0.15
mask_share = 0.8
random_share = 0.1

[optimizer]
rate = 1e-4
beta1 = 0.9
beta2 = 0.999
epsilon = 1e-6
decay = 0.01
clip = 1.0

[schedule]
kind = "linear"
warmup = 0.01
steps = 1000000

[[phases]]
share = 0.9
length = 128
batch_tokens = 32768

[[phases]]
share = 0.1
length = 512
batch_tokens = 131072
"""
BUDGET = """\
seed = 0

[model]
size = "auto"
norm = "pre"
positions = "rotary"
dropout = 0.0
attention_dropout = 0.0

[examples]
pairs = "off"

[objective]
name = "mlm"
rate = 0.45
frequencies = true

[optimizer]
kind = "muon"
rate = 3e-3
epsilon = 1e-8

[schedule]
kind = "linear"
warmup = 0.3
minutes = 30.0

[[phases]]  # as many tokens a step as give about 5,000 steps, unless batch_tokens says it
share = 0.8
length = 64

[[phases]]
share = 0.2
length = 128
"""
QA = """\
[task]
name = "qa"

[tune]
batch = 16
length = 384
epochs = 2.0

[optimizer]
rate = 5e-5
epsilon = 1e-8

[schedule]
kind = "linear"
warmup = 0.1

[train]
evaluations = 4
"""
GRU = """\
[model]
cell = "gru"
width = 384
layers = 1
heads = 1
inner_width = 384
max_length = 128
init_std = 0.05
positions = "none"
dropout = 0.3

[decoder]
feeds = "both"
context = "mapped"

[vocabulary]
size = 6000
joint = true

[task]
smoothing = 0.1

[tune]
batch = 64
epochs = 6.0

[optimizer]
rate = 2e-3
beta2 = 0.98
epsilon = 1e-9
decay = 0.01

[schedule]
kind = "linear"
warmup = 0.05

[train]
evaluations = 6
"""
MULTI = """\
seed = 3
temperature = 0.3

[[tasks]]
name = "mood"
train = "a.tsv"
dev = "b.tsv"
label = "mood"

[tasks.task]
name = "classify"

[[tasks]]
name = "who"
train = "a.conll"
dev = "b.conll"

[tasks.task]
name = "ner"

[tune]
batch = 8
length = 64
epochs = 2.0
frozen = 1
layer_decay = 0.9
head_factor = 5.0
patience = 2

[schedule]
warmup = 0.2

[train]
micro_tokens = 512
evaluations = 5
keep = 3
"""
# The same with the names of today.
NEW_MULTI = """\
seed = 3

[model]
frozen = 1

[tokenizer]
max_length = 64

[data]
temperature = 0.3

[[tasks]]
name = "mood"
train = "a.tsv"
dev = "b.tsv"
label = "mood"
task = {name = "classify"}

[[tasks]]
name = "who"
train = "a.conll"
dev = "b.conll"
task = {name = "ner"}

[optimizer]
layer_decay = 0.9
head_factor = 5.0

[schedule]
warmup = 0.2
epochs = 2.0

[loop]
batch_size = 8
micro_batch_tokens = 512
keep_checkpoints = 3

[evaluate]
times = 5
patience = 2
"""
