//! Servers that crash, stop and start again, and what of their data stays.

use std::fs;
use std::os::unix::fs::MetadataExt;

use tollgate_embedded::Server;

use crate::{Scratch, Traces, eventually, is_alive, query, query_at, signal};

#[test]
fn a_crash_keeps_logged_rows_and_empties_unlogged_ones() {
    let mut server = Server::builder().durable().start().unwrap();
    fill_tables(&server);
    let url = server.url().to_owned();
    server.crash().unwrap();
    query_at(&url, "select 1").unwrap_err();
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(rows_of_tables(&server), "1 0");
    assert!(server.log().contains("was not properly shut down"), "{}", server.log());
}

#[test]
fn a_clean_stop_keeps_all_rows() {
    let mut server = Server::start().unwrap();
    fill_tables(&server);
    server.stop().unwrap();
    query_at(server.url(), "select 1").unwrap_err();
    server.stop().unwrap();
    server.restart().unwrap();
    assert_eq!(rows_of_tables(&server), "1 1");
    server.restart().unwrap();
    assert_eq!(rows_of_tables(&server), "1 1");
    assert!(!server.log().contains("was not properly shut down"), "{}", server.log());
}

#[test]
fn a_server_that_died_by_itself_can_be_restarted() {
    let mut server = Server::start().unwrap();
    let pid = Traces::of(&server).pid;
    assert!(signal("QUIT", &pid));
    eventually("the server to die", || !is_alive(&pid));
    server.restart().unwrap();
    assert_eq!(query(&server, "select 1"), "1");
}

#[test]
fn dropping_leaves_nothing() {
    let mut server = Server::start().unwrap();
    let traces = Traces::of(&server);
    assert!(traces.directory.exists() && is_alive(&traces.pid));
    assert_eq!(fs::metadata(&traces.directory).unwrap().mode() & 0o777, 0o700, "it is private");
    drop(server);
    assert!(!traces.directory.exists());
    assert!(!is_alive(&traces.pid));

    server = Server::start().unwrap();
    let directory = Traces::of(&server).directory;
    server.stop().unwrap();
    drop(server);
    assert!(!directory.exists(), "of a stopped server");
}

#[test]
fn data_in_a_directory_of_the_users_own_stay() {
    let parent = Scratch::new("kept");
    let data = parent.path.join("not/yet/there");
    let server = Server::builder().data_dir(&data).start().unwrap();
    fill_tables(&server);
    let private = Traces::of(&server).directory;
    drop(server);
    assert!(!private.exists());
    let again = Server::builder().data_dir(&data).start().unwrap();
    assert_eq!(rows_of_tables(&again), "1 1");

    let second = Server::builder().data_dir(&data).start().unwrap_err();
    assert!(second.to_string().contains("postmaster.pid"), "{second}");
    assert_eq!(rows_of_tables(&again), "1 1");
}

fn fill_tables(server: &Server) {
    query(server, "create table logged as select 1; create unlogged table unlogged as select 1");
}

fn rows_of_tables(server: &Server) -> String {
    let counts = "select concat((select count(*) from logged), ' ', \
                  (select count(*) from unlogged))";
    query(server, counts)
}
