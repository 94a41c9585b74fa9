const test = require("node:test");
const assert = require("node:assert");
const { execFileSync } = require("node:child_process");

test("words are counted", () => assert.equal(require("counting").words("one  two"), 2));
test("the program counts its arguments", () =>
    assert.equal(execFileSync("node_modules/.bin/words", ["one", "two", "three"]).toString(), "3\n"));
