// Judges the answers of test_grammar_campaign with ajv: node judge.mjs ANSWERS.jsonl
//
// A line is {"schema": ..., "answers": [null | {"text": ..., "changes": [{"text", "taken"}]}]}. Every text
// must be valid; of every changed one the grammar ("taken") and ajv must say the same.
import { createReadStream } from 'node:fs';
import { createInterface } from 'node:readline';
import Ajv from 'ajv/dist/2020.js';
import addFormats from 'ajv-formats';

const lines = createInterface({ input: createReadStream(process.argv[2]) });
let valid = 0, agreed = 0, taken = 0, failed = 0;

function complain(what, schema, text) {
    failed++;
    if (failed <= 20) console.log(`${what}\n  schema ${JSON.stringify(schema)}\n  text   ${text}`);
}

for await (const line of lines) {
    const { schema, answers } = JSON.parse(line);
    const ajv = new Ajv({ strict: false, logger: false });
    addFormats(ajv);
    const validate = ajv.compile(schema);
    for (const answer of answers) {
        if (!answer) continue;
        if (validate(JSON.parse(answer.text))) valid++;
        else complain(`not valid: ${ajv.errorsText(validate.errors)}`, schema, answer.text);
        for (const change of answer.changes) {
            const verdict = validate(JSON.parse(change.text));
            if (verdict !== change.taken) {
                complain(`ajv says ${verdict}, the grammar ${change.taken}`, schema, change.text);
            } else {
                agreed++;
                if (verdict) taken++;
            }
        }
    }
}
console.log(`${valid} answers valid, ${agreed} changed ones judged alike (${taken} of them valid), ` +
    `${failed} failures`);
process.exit(failed || valid === 0 ? 1 : 0);
