-- Calls with a name, each with its charges, until it is settled, lapses or is forgotten. Logged, also for ephemeral
-- limits: a retry after a crash is not charged twice.

create table tollgate.calls (
    part       smallint         not null,
    name       text collate "C" not null,
    key        text collate "C" not null,
    id         text collate "C" not null,
    asked      bigint           not null,
    charges    json             not null,
    answer     json,
    charged_at timestamptz      not null,
    reported   bigint           not null default 0,
    lapses_at  timestamptz,
    kept_until timestamptz      not null,
    used       boolean          not null default false,

    constraint calls_pkey primary key (part, name, key, id),
    -- `tollgate distribute` swaps this one, as that of the other tables.
    constraint calls_part check (part = 0),
    constraint calls_row check (
        pg_catalog.octet_length(name) <= 255
        and pg_catalog.octet_length(key) <= 512
        and pg_catalog.octet_length(id) between 1 and 255
        and least(charged_at, kept_until, lapses_at) > '-infinity'
        and greatest(charged_at, kept_until, lapses_at) < '262143-01-01 00:00:00+00'
    )
)
with (fillfactor = 80, vacuum_truncate = off);

-- The next call that lapses, for a reaper.
create index calls_lapse on tollgate.calls (part, lapses_at) where lapses_at is not null;

-- An empty first megabyte, as in the other tables, for the same reason.
alter table tollgate.calls alter charges set storage plain;
insert into tollgate.calls (part, name, key, id, asked, charges, charged_at, kept_until)
select 0, '-', '-', n::text, 0, pg_catalog.to_json(pg_catalog.repeat('-', 7000)), 'epoch', 'epoch'
  from pg_catalog.generate_series(1, 128) n;
delete from tollgate.calls;
alter table tollgate.calls alter charges set storage extended;

comment on table  tollgate.calls            is
    'calls with a name: what each has charged, until it is settled, lapses or is forgotten';
comment on column tollgate.calls.part       is 'that of the key';
comment on column tollgate.calls.name       is 'a limit that the call asked, under which its id counts';
comment on column tollgate.calls.key        is 'the key of that limit';
comment on column tollgate.calls.id         is 'the id that the caller gave it (`once`), or one that was drawn';
comment on column tollgate.calls.asked      is 'a fingerprint of what was asked: who repeats the id must ask the same';
comment on column tollgate.calls.charges    is 'what was taken from which row, as receipts have it';
comment on column tollgate.calls.answer     is
    'what a repeat is answered besides; null where nobody can repeat the call';
comment on column tollgate.calls.charged_at is 'the instant of the decision';
comment on column tollgate.calls.reported   is 'micro-tokens that were used so far: a lapse gives back the rest';
comment on column tollgate.calls.lapses_at  is
    'when what is charged comes back; null where it does not, or was settled';
comment on column tollgate.calls.kept_until is 'until when the id is known at least';
comment on column tollgate.calls.used       is 'whether it was settled or cancelled';
