-- Shard tables: what a gate needs that writes to the table of one shard on its node of Citus, past Citus's planner.

-- Holds a shard of ours on this node until the transaction ends, as Citus does for each of its own writes: a move and a
-- split wait for that. Returns whether the shard lies here, and nowhere else. The last look needs a snapshot that is
-- taken after the lock, so this is PL/pgSQL, and volatile. The first look keeps callers from holding off moves of the
-- owner's other tables. Citus lets only a table's owner take the lock; 5 is a share lock.
create function tollgate.hold_shard(shard int8, node int4) returns bool
language plpgsql security definer set search_path = pg_catalog, pg_temp set row_security = off as $$
declare
    nodes int4[];
begin
    if not exists (select from pg_catalog.pg_dist_shard s
                    where s.shardid = shard
                      and s.logicalrelid in ('tollgate.durable'::regclass, 'tollgate.ephemeral'::regclass)) then
        return false;
    end if;
    perform pg_catalog.lock_shard_metadata(5, array[shard]);
    select array_agg(p.groupid) into nodes from pg_catalog.pg_dist_placement p where p.shardid = shard;
    return coalesce(nodes = array[node], false);
end $$;

-- Only the owner may call the functions, until somebody grants them (`tollgate migrate up --grant ROLE`).
revoke execute on all functions in schema tollgate from public;
