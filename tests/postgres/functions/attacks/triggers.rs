//! Triggers on tables of an attacker's own.

use super::Attacker;
use crate::functions::fails;
use crate::teller::run;

/// For columns of any type, and for any kind of table.
#[tokio::test]
async fn no_trigger_runs_what_the_owner_of_its_table_has_laid_out() {
    let mut attacker = Attacker::new().await;
    attacker
        .run(
            "create function evil.equal(text, text) returns bool language plpgsql as 'begin return evil.steal(); end';
             create function evil.equal(int8, int8) returns bool language plpgsql as 'begin return evil.steal(); end';
             create operator evil.= (leftarg = text, rightarg = text, function = evil.equal);
             create operator evil.= (leftarg = int8, rightarg = int8, function = evil.equal);
             create function evil.format(text, text) returns text language plpgsql as
                 'begin perform evil.steal(); return $2; end';
             create function evil.consume(text, text, numeric) returns text language plpgsql as
                 'begin perform evil.steal(); return $2; end';
             create type evil.named as enum ('ada');
             create domain evil.strict as text check (evil.steal());
             create type evil.pair as (named evil.named, strict evil.strict);
             create domain evil.strict_pair as evil.pair check (evil.steal());
             create function evil.difference(text, text) returns float8 language plpgsql immutable as
                 'begin perform evil.steal(); return 1; end';
             create type evil.span as range (subtype = text, subtype_diff = evil.difference);",
        )
        .await;
    for of in ["named", "strict", "pair", "strict_pair", "span"] {
        for to in ["json", "jsonb", "text", "bytea"] {
            let function = format!("evil.{to}_of(evil.{of})");
            attacker
                .run(&format!(
                    "create function {function} returns {to} language plpgsql as 'begin perform evil.steal(); end';
                     create cast (evil.{of} as {to}) with function {function}"
                ))
                .await;
        }
    }
    attacker
        .run(
            "create function evil.made(text) returns text language plpgsql immutable as
                 'begin perform evil.steal(); return $1; end';
             create table evil.kinds (named evil.named, strict evil.strict, pair evil.pair,
                                      strict_pair evil.strict_pair, span evil.span, list evil.named[],
                                      made text generated always as (evil.made('made')) stored, gone int, old text,
                                      ten int default 10);
             alter table evil.kinds drop column gone;
             alter table evil.kinds rename column old to fresh;
             create trigger rows before insert on evil.kinds for each row execute function tollgate.limit_rows(
                    'ten', 'named', 'strict', 'pair', 'strict_pair', 'span', 'list', 'fresh');
             create trigger after_rows after insert or update on evil.kinds for each row
                    execute function tollgate.limit_rows('ten', 'made', 'named');
             create trigger statements after insert on evil.kinds referencing new table as inserted for each statement
                    execute function tollgate.limit_inserts('ten', 'named', 'strict', 'pair', 'strict_pair', 'span',
                                                            'list', 'made', 'fresh');
             create constraint trigger at_commit after insert on evil.kinds deferrable initially deferred for each row
                    execute function tollgate.limit_rows('ten', 'fresh');
             insert into evil.kinds values ('ada', 's', ('ada', 's'), ('ada', 's'), '[a,b)', array['ada'::evil.named],
                                            default, 'f');",
        )
        .await;
    assert!(!attacker.stole().await);
    let all = "ada|s|(ada,s)|(ada,s)|[a,b)|{ada}";
    for key in [&format!("{all}|f"), "made|ada", &format!("{all}|made|f"), "f"] {
        assert_eq!(attacker.left(key).await, 9, "{key}");
    }

    attacker
        .run(
            "create table evil.parted (author text) partition by list (author);
             create table evil.part partition of evil.parted for values in ('part');
             create trigger rows before insert on evil.parted for each row
                    execute function tollgate.limit_rows('ten', 'author');
             create trigger statements after insert on evil.parted referencing new table as inserted
                    for each statement execute function tollgate.limit_inserts('ten', 'author');
             create view evil.seen as select author from evil.plain where evil.steal();
             create trigger instead instead of insert on evil.seen for each row
                    execute function tollgate.limit_rows('ten', 'author');
             create table evil.child () inherits (evil.plain);
             create trigger rows before insert on evil.child for each row
                    execute function tollgate.limit_rows('ten', 'author');
             create temp table own (author text);
             create trigger rows before insert on own for each row
                    execute function tollgate.limit_rows('ten', 'author');
             insert into evil.parted values ('part');
             insert into evil.seen values ('view');
             insert into evil.child values ('child');
             insert into own values ('temp');",
        )
        .await;
    assert!(!attacker.stole().await);
    for (key, left) in [("part", 8), ("view", 9), ("child", 9), ("temp", 9)] {
        assert_eq!(attacker.left(key).await, left, "{key}");
    }
}

/// A name that is no column may be a function of the row, a cast of it, or all of it.
#[tokio::test]
async fn an_argument_that_is_no_column_is_an_error() {
    let mut attacker = Attacker::new().await;
    attacker
        .run(
            "create type evil.hook as enum ('ada');
             create function evil.to_json(evil.hook) returns json language plpgsql as
                 $$ begin perform evil.steal(); return '1'; end $$;
             create cast (evil.hook as json) with function evil.to_json(evil.hook);
             create table evil.hooked (hook evil.hook, gone text);
             create function evil.own(evil.hooked) returns text language plpgsql as
                 $$ begin perform evil.steal(); return 'x'; end $$;
             alter table evil.hooked drop column gone;",
        )
        .await;
    for name in [
        "row_to_json",
        "to_json",
        "to_jsonb",
        "own",
        "evil.own",
        "text",
        "json",
        "hooked",
        "evil",
        "new",
        "new_row",
        "i",
        "inserted",
        "k",
        "gone",
        "........pg.dropped.2........",
        "ctid",
        "xmin",
        "tableoid",
        "*",
        "",
        "$1",
        "hook.hook",
        "hook, evil.steal()",
        "current_user",
        "HOOK",
        // Two of them.
        "gone', 'ctid",
    ] {
        for trigger in [
            "before insert on evil.hooked for each row execute function tollgate.limit_rows",
            "after insert on evil.hooked referencing new table as inserted for each statement
                 execute function tollgate.limit_inserts",
        ] {
            attacker.run(&format!("create or replace trigger tried {trigger}('ten', '{name}')")).await;
            let error = sqlx::raw_sql("insert into evil.hooked values ('ada')").execute(&mut attacker.conn).await;
            let error = error.expect_err(name).into_database_error().unwrap();
            assert_eq!(error.code().unwrap(), "TG002", "{name}: {trigger}");
            assert!(error.message().starts_with("limit 'ten': table evil.hooked stores no column "), "{error}");
            attacker.run("drop trigger tried on evil.hooked").await;
        }
    }
    assert!(!attacker.stole().await);
}

/// Without a transition table of that name, `inserted` is whatever the caller has.
#[tokio::test]
async fn a_trigger_without_its_new_rows_is_an_error() {
    for bait in ["view inserted as select 'ada' as author where evil.steal()", "table inserted (author text)"] {
        let mut attacker = Attacker::new().await;
        attacker.run(&format!("create temp {bait}; create {}", bait.replace("inserted", "evil.inserted"))).await;
        refuse_wrong_triggers(&mut attacker).await;
        // A trigger that has its new rows works, unless its table could be a temporary relation.
        let with = "create trigger tried after insert on evil.plain referencing new table as inserted
                           for each statement execute function tollgate.limit_inserts('ten', 'author')";
        attacker.run(with).await;
        assert_eq!(fails(&mut attacker.conn, "insert into evil.plain values ('ada', 'x')").await, "TG002");
        let kind = bait.split(' ').next().unwrap();
        attacker
            .run(&format!("drop {kind} pg_temp.inserted; insert into evil.plain values ('ada', 'x'), ('ada', 'x')"))
            .await;
        assert_eq!(attacker.left("ada").await, 8);
        attacker.run("drop trigger tried on evil.plain").await;
        refuse_wrong_triggers(&mut attacker).await;
        assert!(!attacker.stole().await);
    }
}

async fn refuse_wrong_triggers(attacker: &mut Attacker) {
    for (when, how) in [
        ("after insert", "for each statement execute function tollgate.limit_inserts"),
        ("after insert", "referencing new table as news for each statement execute function tollgate.limit_inserts"),
        ("after insert", "referencing new table as inserted for each row execute function tollgate.limit_inserts"),
        ("before insert", "for each row execute function tollgate.limit_inserts"),
        (
            "after update",
            "referencing old table as inserted for each statement execute function tollgate.limit_inserts",
        ),
        (
            "after delete",
            "referencing old table as inserted for each statement execute function tollgate.limit_inserts",
        ),
        ("after truncate", "for each statement execute function tollgate.limit_inserts"),
        ("before delete", "for each row execute function tollgate.limit_rows"),
        ("before insert", "for each statement execute function tollgate.limit_rows"),
    ] {
        attacker.run("insert into evil.plain values ('ada', 'x')").await;
        let fire = match when.split(' ').nth(1).unwrap() {
            "insert" => "insert into evil.plain values ('ada', 'x')",
            "update" => "update evil.plain set author = author",
            "delete" => "delete from evil.plain",
            _ => "truncate evil.plain",
        };
        for arguments in ["'ten', 'author'", "'ten'"] {
            attacker.run(&format!("create trigger tried {when} on evil.plain {how}({arguments})")).await;
            assert_eq!(fails(&mut attacker.conn, fire).await, "TG002", "{when} {how}({arguments})");
            attacker.run("drop trigger tried on evil.plain").await;
        }
    }
}

/// A snapshot shows the catalogues as they were; what runs is as it is.
#[tokio::test]
async fn no_snapshot_of_before_hides_what_a_trigger_is() {
    let mut attacker = Attacker::new().await;
    attacker
        .run(
            "create temp view inserted as select 'ada' as author where evil.steal();
             create type evil.hook as enum ('ada');
             create function evil.to_json(evil.hook) returns json language plpgsql as
                 $$ begin perform evil.steal(); return '1'; end $$;
             create cast (evil.hook as json) with function evil.to_json(evil.hook);
             create table evil.hooked (hook evil.hook, to_json text);
             create trigger statements after insert on evil.plain referencing new table as inserted
                    for each statement execute function tollgate.limit_inserts('ten', 'author');
             create trigger rows before insert on evil.hooked
                    for each row execute function tollgate.limit_rows('ten', 'to_json')",
        )
        .await;
    let without = "create trigger statements after insert on evil.plain for each statement
                          execute function tollgate.limit_inserts('ten', 'author')";
    for (change, fire) in [
        (
            format!(
                "alter trigger statements on evil.plain rename to other; {without}; drop trigger other on evil.plain"
            ),
            "insert into evil.plain values ('ada', 'x')",
        ),
        (
            "alter table evil.hooked rename column to_json to renamed".to_owned(),
            "insert into evil.hooked values ('ada')",
        ),
    ] {
        attacker.run("begin isolation level repeatable read; select 1").await;
        run(&mut attacker.other().await, &change).await;
        let code = fails(&mut attacker.conn, fire).await;
        assert!(["TG002", "42703"].contains(&&*code), "{code}: {fire}");
        attacker.run("rollback").await;
        assert!(!attacker.stole().await, "{fire}");
    }
}

/// PostgreSQL fires the triggers that a table had when its statement began.
#[tokio::test]
async fn no_trigger_that_an_earlier_one_replaces_reads_what_its_caller_has() {
    let without = "for each statement execute function tollgate.limit_inserts('ten', 'author')";
    for earlier in ["a before insert on evil.plain for each row", "a after insert on evil.plain for each statement"] {
        let mut attacker = Attacker::new().await;
        attacker
            .run(&format!(
                "create temp view inserted as select 'ada' as author where evil.steal();
                 grant select on inserted to public;
                 create function evil.replace() returns trigger language plpgsql as $$ begin
                     create or replace trigger b after insert on evil.plain referencing new table as inserted {without};
                     return new;
                 end $$;
                 create trigger b after insert on evil.plain {without};
                 create trigger {earlier} execute function evil.replace()"
            ))
            .await;
        assert_eq!(fails(&mut attacker.conn, "insert into evil.plain values ('ada', 'x')").await, "TG002", "{earlier}");
        assert!(!attacker.stole().await, "{earlier}");
    }
}
