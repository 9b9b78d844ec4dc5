// The package, as another project installs it.
import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { mkdir, mkdtemp, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const web = fileURLToPath(new URL("..", import.meta.url));
const run = promisify(execFile);
const USE = `
import { RateLimitMirror, RateLimitMirrors, type Known, type Sent } from "tollgate-mirror";
import { useRateLimit } from "tollgate-mirror/react";

const mirror: RateLimitMirror = new RateLimitMirrors({ size: 10, maxWait: 1_000 }).of("user");
const sent: Sent = mirror.sent(2);
sent.answered(new Response(null, { status: 429, headers: { "retry-after": "1" } }));
export const known: Known = mirror.known(2);
export const answer: Promise<Response> = mirror.fetch("/", { method: "POST", cost: 2, maxWait: 5 });
export const Send = () => useRateLimit(mirror, 2).seconds;
// @ts-expect-error: a cost is a number
mirror.passes("2");
`;

let project, files;
before(async () => {
  project = await mkdtemp(join(tmpdir(), "tollgate-mirror-"));
  // Without its scripts: it is built, and other tests read it.
  const pack = ["pack", "--json", "--ignore-scripts", "--pack-destination", project];
  const { stdout } = await run("npm", pack, { cwd: web });
  const [packed] = Object.values(JSON.parse(stdout));
  files = packed.files.map(({ path }) => path);
  const installed = join(project, "node_modules/tollgate-mirror");
  await mkdir(installed, { recursive: true });
  await run("tar", ["-xzf", join(project, packed.filename), "-C", installed, "--strip-components=1"]);
  await writeFile(join(project, "package.json"), '{ "type": "module" }');
});
after(() => rm(project, { recursive: true }));

test("it has nothing but the two entries, their types and their licences", () => {
  const others = files.filter((path) => !/^dist\/([\w-]+\.(d\.ts|js)|LICENSE-[\w-]+)$/.test(path));
  assert.deepEqual(others, ["package.json"]);
  for (const path of ["dist/index.js", "dist/index.d.ts", "dist/mirror-react.js", "dist/mirror-react.d.ts"]) {
    assert.ok(files.includes(path), path);
  }
});

test("the mirror needs no other package, and the hook needs React alone", async () => {
  const load = (name) => run("node", ["--input-type=module", "--eval", `await import("${name}")`], { cwd: project });
  await load("tollgate-mirror");
  await assert.rejects(load("tollgate-mirror/react"), /Cannot find package 'react'/);
  await symlink(join(web, "node_modules/react"), join(project, "node_modules/react"));
  await load("tollgate-mirror/react");
});

test("a use of both type-checks, by the rules of Node and of bundlers", async () => {
  await mkdir(join(project, "node_modules/@types"));
  await symlink(join(web, "node_modules/@types/react"), join(project, "node_modules/@types/react"));
  await writeFile(join(project, "use.ts"), USE);
  for (const [module, moduleResolution] of [["NodeNext", "NodeNext"], ["ESNext", "Bundler"]]) {
    const options = ["--noEmit", "--strict", "--target", "ES2022", "--lib", "ES2022,DOM,DOM.Iterable"];
    const resolution = ["--module", module, "--moduleResolution", moduleResolution];
    const tsc = join(web, "node_modules/.bin/tsc");
    await run(tsc, [...options, ...resolution, "use.ts"], { cwd: project }).catch(({ stdout }) => assert.fail(stdout));
  }
});
