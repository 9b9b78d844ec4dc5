//! Settings of a server, its port, and variables that must not reach it.

use tollgate_embedded::{Server, StartError};

use crate::{Owner, query, query_at};

#[test]
fn tcp_works_and_the_port_stays_over_a_restart() {
    let mut server = Server::builder().tcp().start().unwrap();
    let url = server.url().to_owned();
    assert!(url.starts_with("postgres://postgres@127.0.0.1:"), "{url}");
    assert_eq!(query(&server, "select inet_server_addr()"), "127.0.0.1");
    server.restart().unwrap();
    assert_eq!(server.url(), url);
    assert_eq!(query(&server, "select 1"), "1");
}

#[test]
fn without_tcp_nobody_listens_on_it() {
    let server = Server::start().unwrap();
    assert_eq!(query(&server, "show listen_addresses"), "");
    assert_eq!(query(&server, "select inet_server_addr() is null"), "t");
}

#[test]
fn settings_arrive_as_given() {
    let name = r#"it's $HOME\n "x" `id` = ä"#;
    let server = Server::builder().setting("max_connections", "7").setting("tollgate.probe", name).start().unwrap();
    assert_eq!(query(&server, "show max_connections"), "7");
    assert_eq!(query(&server, "show tollgate.probe"), name);
}

#[test]
fn the_users_setting_comes_after_ours() {
    assert_eq!(query(&Server::builder().setting("fsync", "on").start().unwrap(), "show fsync"), "on");
}

#[test]
fn what_is_no_name_is_refused() {
    for (name, value) in [("", "1"), ("a=b", "1"), ("a b", "1"), ("-c", "1"), ("work_mem", "1\0"), ("Port", "1")] {
        let error = Server::builder().setting(name, value).start().unwrap_err();
        assert!(matches!(error, StartError::Setting { .. }), "{name}: {error}");
    }
}

#[test]
fn a_bad_setting_is_answered_with_the_servers_reason() {
    let error = Server::builder().setting("no_such_setting", "1").start().unwrap_err();
    assert!(matches!(error, StartError::Startup { .. }), "{error:?}");
    let reason = r#"unrecognized configuration parameter "no_such_setting""#;
    assert!(error.to_string().contains(reason), "{error}");
}

#[test]
fn the_users_variables_do_not_reach_the_server() {
    let owner = Owner::start("hold", |command| {
        command.envs([("PGCLIENTENCODING", "LATIN1"), ("PGDATA", "/nowhere")]);
        command.envs([("PGPORT", "1"), ("PGHOST", "/nowhere"), ("PGOPTIONS", "-c x=y")]);
        command.envs([("LC_ALL", "fr_FR.UTF-8"), ("LANGUAGE", "fr")]);
    });
    assert_eq!(query_at(&owner.url(), "show client_encoding").unwrap(), "UTF8");
    assert_eq!(query_at(&owner.url(), "show lc_messages").unwrap(), "C");
}
