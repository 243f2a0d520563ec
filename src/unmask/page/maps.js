// Attention weights and what is computed from them, as in infer/attention_maps.py; a test compares the
// two.
//
//   weights   Float32Array [layers, heads, from, to]

export class Maps {
  constructor({ tokens, segments, words, special, layers, heads, weights }) {
    Object.assign(this, { tokens, segments, words, special, layers, heads, weights });
    this.size = tokens.length;
  }

  static of(data) {
    const bytes = Uint8Array.from(atob(data.weights), (character) => character.charCodeAt(0));
    return new Maps({ ...data, weights: new Float32Array(bytes.buffer) });
  }

  /** The weights of one head, as a view without copying. */
  head(layer, head) {
    const length = this.size * this.size;
    const start = (layer * this.heads + head) * length;
    return this.weights.subarray(start, start + length);
  }

  /** Without [CLS] and [SEP]; the rest of each row is rescaled to sum to 1. */
  hidden() {
    const keep = indices(this.size, (i) => !this.special[i]);
    const pick = (list) => keep.map((i) => list[i]);
    const numbers = new Map();
    for (const word of pick(this.words)) if (!numbers.has(word)) numbers.set(word, numbers.size);
    return this.#changed(
      {
        tokens: pick(this.tokens),
        segments: pick(this.segments),
        special: keep.map(() => false),
        words: pick(this.words).map((word) => numbers.get(word)),
      },
      (from, out) => {
        keep.forEach((i, row) => {
          let total = 0;
          for (const j of keep) total += from[i * this.size + j];
          keep.forEach((j, column) => {
            out[row * keep.length + column] = total ? from[i * this.size + j] / total : 0;
          });
        });
      },
    );
  }

  /** Per word: the sum of the weights that its word pieces receive, the mean of those that they give. */
  merged() {
    const count = this.size ? Math.max(...this.words) + 1 : 0;
    const members = Array.from({ length: count }, () => []);
    this.words.forEach((word, i) => members[word].push(i));
    const first = members.map(([i]) => i);
    return this.#changed(
      {
        tokens: members.map((tokens) =>
          tokens.map((i, n) => (n ? this.tokens[i].replace(/^##/, "") : this.tokens[i])).join(""),
        ),
        segments: first.map((i) => this.segments[i]),
        special: first.map((i) => this.special[i]),
        words: members.map((_, word) => word),
      },
      (from, out) => {
        for (let i = 0; i < this.size; i++) {
          const mean = 1 / members[this.words[i]].length;
          for (let j = 0; j < this.size; j++) {
            out[this.words[i] * count + this.words[j]] += from[i * this.size + j] * mean;
          }
        }
      },
    );
  }

  #changed(lists, fill) {
    const size = lists.tokens.length;
    const weights = new Float32Array(this.layers * this.heads * size * size);
    for (let head = 0; head < this.layers * this.heads; head++) {
      const from = this.weights.subarray(head * this.size ** 2, (head + 1) * this.size ** 2);
      fill(from, weights.subarray(head * size * size, (head + 1) * size * size));
    }
    return new Maps({ ...this, ...lists, weights });
  }
}

/** Indices of the tokens to draw: [from, to]. */
export function ends(maps, texts) {
  const [source, target] = { all: [null, null], "first to second": [0, 1], "second to first": [1, 0] }[texts];
  return [source, target].map((part) =>
    indices(maps.size, (i) => part === null || maps.segments[i] === part),
  );
}

function indices(count, wanted) {
  return Array.from({ length: count }, (_, i) => i).filter(wanted);
}
