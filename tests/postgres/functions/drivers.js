const { Client } = require("pg");
const postgres = require("postgres");
const assert = require("node:assert");

const url = process.env.DATABASE_URL;
const id = "00000000-0000-0000-0000-000000000007";

(async () => {
    const client = new Client(url);
    await client.connect();
    for (const key of [7, id]) {
        const ask = "select granted from tollgate.consume('ten', $1, $2::float8::numeric)";
        assert((await client.query(ask, [key, 1])).rows[0].granted);
    }
    const sum = "select granted, retry_after_seconds from tollgate.consume('ten', 'sum of pg', $1::float8::numeric)";
    assert((await client.query(sum, [0.1 + 0.2])).rows[0].granted);
    const { granted, retry_after_seconds } = (await client.query(sum, [10])).rows[0];
    assert(!granted && retry_after_seconds > 0 && retry_after_seconds < 10_000_000);
    await client.end();

    // It passes over the directory of a socket where the URL names a host besides.
    const host = new URL(url).searchParams.get("host");
    const sql = postgres(url.split("?")[0], host ? { host } : {});
    for (const key of [7, id]) {
        assert((await sql`select granted from tollgate.consume('ten', ${key}, ${1}::float8::numeric)`)[0].granted);
    }
    await assert.rejects(sql`select granted from tollgate.consume('ten', ${7n})`, { code: "42883" });
    assert((await sql`select granted from tollgate.consume('ten', ${8n}::text)`)[0].granted);
    await sql.end();
})();
