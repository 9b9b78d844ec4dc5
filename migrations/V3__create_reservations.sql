-- Tracked charges: one row until the charge is settled or cancelled, so that its receipt counts once however often it is read.

create table tollgate.reservations (
    name       text collate "C" not null,
    key        text collate "C" not null,
    id         bigint           not null generated always as identity,
    parts      bigint[]         not null,
    cost       bigint           not null,
    ready_at   timestamptz      not null,
    created_at timestamptz      not null default clock_timestamp(),

    -- By limit and key, as the other tables, so that all three can be spread over machines by the same columns.
    constraint reservations_pkey              primary key (name, key, id),
    constraint reservations_name_in_range     check (octet_length(name) between 1 and 255),
    constraint reservations_key_in_range      check (octet_length(key) <= 512),
    constraint reservations_cost_not_negative check (cost >= 0)
);

comment on table  tollgate.reservations            is 'tracked charges that are neither settled nor cancelled';
comment on column tollgate.reservations.name       is 'the limit''s name';
comment on column tollgate.reservations.key        is 'whom it was charged to';
comment on column tollgate.reservations.id         is 'what the receipt refers to';
comment on column tollgate.reservations.parts      is 'what was taken from shard 0, 1, 2, ..., in micro-tokens';
comment on column tollgate.reservations.cost       is 'the sum of the parts, in micro-tokens (1 token = 1 000 000)';
comment on column tollgate.reservations.ready_at   is 'from when on the tokens may be spent';
comment on column tollgate.reservations.created_at is 'when it was charged';
