// Attention weights, and what can be read off them. The same sums as infer/attention_maps.py; a test holds
// both to each other.
//
//   weights   Float32Array of layers x heads x from x to

export class Maps {
  constructor({ tokens, segments, words, special, layers, heads, weights }) {
    Object.assign(this, { tokens, segments, words, special, layers, heads, weights });
    this.size = tokens.length;
  }

  static of(data) {
    const bytes = Uint8Array.from(atob(data.weights), (letter) => letter.charCodeAt(0));
    return new Maps({ ...data, weights: new Float32Array(bytes.buffer) });
  }

  /** The rows of one head: a view, nothing is copied. */
  head(layer, head) {
    const each = this.size * this.size;
    const start = (layer * this.heads + head) * each;
    return this.weights.subarray(start, start + each);
  }

  /** Without [CLS] and [SEP], as if nobody could have looked there. */
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
        keep.forEach((i, a) => {
          let total = 0;
          for (const j of keep) total += from[i * this.size + j];
          keep.forEach((j, b) => {
            out[a * keep.length + b] = total ? from[i * this.size + j] / total : 0;
          });
        });
      },
    );
  }

  /** Of words: looked at with all their pieces together, looking as the mean of them. */
  merged() {
    const count = this.size ? Math.max(...this.words) + 1 : 0;
    const pieces = Array.from({ length: count }, () => []);
    this.words.forEach((word, i) => pieces[word].push(i));
    const first = pieces.map(([i]) => i);
    return this.#changed(
      {
        tokens: pieces.map((own) =>
          own.map((i, n) => (n ? this.tokens[i].replace(/^##/, "") : this.tokens[i])).join(""),
        ),
        segments: first.map((i) => this.segments[i]),
        special: first.map((i) => this.special[i]),
        words: pieces.map((_, word) => word),
      },
      (from, out) => {
        for (let i = 0; i < this.size; i++) {
          const mean = 1 / pieces[this.words[i]].length;
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
    for (let at = 0; at < this.layers * this.heads; at++) {
      const from = this.weights.subarray(at * this.size ** 2, (at + 1) * this.size ** 2);
      fill(from, weights.subarray(at * size * size, (at + 1) * size * size));
    }
    return new Maps({ ...this, ...lists, weights });
  }
}

/** Which tokens of the two texts are drawn: [from, to], as indices. */
export function ends(maps, which) {
  const [source, target] = { all: [null, null], "first to second": [0, 1], "second to first": [1, 0] }[which];
  return [source, target].map((part) =>
    indices(maps.size, (i) => part === null || maps.segments[i] === part),
  );
}

function indices(count, wanted) {
  return Array.from({ length: count }, (_, i) => i).filter(wanted);
}
