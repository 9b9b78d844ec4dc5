// The pictures of the guides are those that the core makes today.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { test } from "node:test";
import { drawn } from "../pictures.mjs";

for (const [name, picture] of Object.entries(await drawn())) {
  test(`docs/${name} is up to date`, async () => {
    const before = await readFile(new URL(`../../docs/${name}`, import.meta.url), "utf8");
    assert.ok(before === picture, "run `./dev pictures`");
  });
}
