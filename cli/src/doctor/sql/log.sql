-- Which part of the write-ahead log were whole pages, if they were most of it, are not compressed, and limits write the
-- log. A page takes up to 8 192 bytes there, less its free room; servers before 18 do not count the bytes.
select least(w.wal_fpi * 7000 / w.wal_bytes, 1)::float8 as share
  from pg_stat_wal w
  join pg_stat_user_tables s on s.schemaname = 'tollgate' and s.relname = 'durable'
 where s.n_tup_upd > 10000
   and w.wal_fpi * 7000 > w.wal_bytes / 2
   and current_setting('wal_compression') = 'off'
