// Token ids of a corpus by an independent implementation, the npm package @huggingface/tokenizers.
//
//     node other_ids.mjs TOKENIZER_JSON CORPUS_JSON OUTPUT_JSON
//
// Run where `npm install @huggingface/tokenizers@0.2.0` put node_modules (tests/text/
// released_tokenizer.sh does). CORPUS_JSON is a list of texts, OUTPUT_JSON a list of lists of ids.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";

const require = createRequire(process.cwd() + "/");
const { Tokenizer } = require("@huggingface/tokenizers");

const [tokenizerPath, corpusPath, outputPath] = process.argv.slice(2);
const read = (path) => JSON.parse(readFileSync(path, "utf8"));
const tokenizer = new Tokenizer(read(tokenizerPath), {});
const lists = read(corpusPath).map((text) => {
  const ids = tokenizer.encode(text, { add_special_tokens: false }).ids;
  return "[" + Array.from(ids).join(",") + "]";
});
writeFileSync(outputPath, "[\n" + lists.join(",\n") + "\n]\n");
