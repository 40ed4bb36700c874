//! Sessions: think time, history, what a failed turn takes with it; by hand, in virtual time and
//! over a socket.

use pb_contract::plan::{ChatTurn, Plan, PlannedBody, PlannedPrompt, Session, Turn};
use pb_contract::{Nanos, RequestId, RequestStatus};
use pb_load::driver::{Action, Driver, PlanError, SendOrder};
use pb_load::rows::{Record, RunContext};
use pb_load::shell_sim::{FixedServer, SimOptions, run_sim};
use pb_load::{Limits, StopSignal, run_plan_blocking};
use serde_json::json;

use crate::driver::{body, patient, plan};
use crate::script::{Answer, End, ScriptServer};

fn says(role: &str, content: &str) -> ChatTurn {
    ChatTurn {
        role: role.into(),
        content: content.into(),
    }
}

fn chat(text: &str) -> PlannedBody {
    PlannedBody::of("chat", PlannedPrompt::Chat(vec![says("user", text)]), 3, 2)
}

fn turn(id: u64, think_ms: u64, body: PlannedBody, history: bool) -> Turn {
    Turn {
        id: RequestId(id),
        think_ns: Nanos::from_millis(think_ms),
        body,
        history,
    }
}

fn talk(offset_ms: u64, turns: Vec<Turn>) -> Session {
    Session {
        offset_ns: Nanos::from_millis(offset_ms),
        turns,
    }
}

fn with(sessions: Vec<Session>) -> Plan {
    Plan {
        sessions,
        ..plan(vec![], vec![])
    }
}

fn sent(driver: &mut Driver, ms: u64) -> Vec<SendOrder> {
    let actions = driver.poll(Nanos::from_millis(ms));
    let order = |action| match action {
        Action::Send(order) => Some(order),
        _ => None,
    };
    actions.into_iter().filter_map(order).collect()
}

fn end(driver: &mut Driver, id: u64, ms: u64, answer: Option<&str>) {
    let answer = answer.map(str::to_owned);
    driver.ended(RequestId(id), Nanos::from_millis(ms), answer);
}

#[test]
fn a_turn_is_due_a_think_time_after_the_end_of_the_one_before() {
    let turns = vec![turn(0, 0, body("a"), false), turn(1, 30, body("b"), false)];
    let other = vec![turn(9, 0, body("c"), false)];
    let plan = with(vec![talk(10, turns), talk(20, other)]);
    let mut driver = Driver::new(plan, Nanos::ZERO).unwrap();
    assert_eq!(
        driver.poll(Nanos::ZERO),
        [Action::WakeAt(Nanos::from_millis(10))]
    );
    assert_eq!(sent(&mut driver, 12)[0].intended, Nanos::from_millis(10));
    assert_eq!(sent(&mut driver, 25)[0].id, RequestId(9));
    // A failure is an end like any other when the next turn needs no answer.
    end(&mut driver, 0, 100, None);
    let wake = driver.poll(Nanos::from_millis(100));
    assert_eq!(wake, [Action::WakeAt(Nanos::from_millis(130))]);
    // Asked late, the instant stays.
    let orders = sent(&mut driver, 150);
    assert_eq!(
        (orders[0].id, orders[0].intended),
        (RequestId(1), Nanos::from_millis(130))
    );
    end(&mut driver, 9, 151, None);
    end(&mut driver, 1, 160, None);
    assert_eq!(driver.poll(Nanos::from_millis(160)), [Action::Done]);
}

#[test]
fn history_puts_messages_and_answers_in_front() {
    let turns = vec![
        turn(0, 0, chat("one"), false),
        turn(1, 0, chat("two"), true),
        turn(2, 0, chat("three"), true),
    ];
    let mut driver = Driver::new(with(vec![talk(0, turns)]), Nanos::ZERO).unwrap();
    assert!(sent(&mut driver, 0)[0].wants_answer);
    end(&mut driver, 0, 5, Some("1!"));
    assert!(sent(&mut driver, 5)[0].wants_answer);
    end(&mut driver, 1, 9, Some("2!"));
    let last = sent(&mut driver, 9).remove(0);
    let expected = vec![
        says("user", "one"),
        says("assistant", "1!"),
        says("user", "two"),
        says("assistant", "2!"),
        says("user", "three"),
    ];
    assert_eq!(last.body.prompt, PlannedPrompt::Chat(expected));
    assert!(!last.wants_answer);
}

#[test]
fn without_the_answer_the_rest_is_not_offered() {
    let turns = vec![
        turn(0, 0, chat("one"), false),
        turn(1, 10, chat("two"), true),
        turn(2, 10, chat("three"), true),
    ];
    let mut driver = Driver::new(with(vec![talk(0, turns)]), Nanos::ZERO).unwrap();
    sent(&mut driver, 0);
    end(&mut driver, 0, 50, None);
    let actions = driver.poll(Nanos::from_millis(50));
    let lost: Vec<(u64, Nanos)> = actions
        .iter()
        .filter_map(|action| match action {
            Action::NotOffered(order) => Some((order.id.0, order.intended)),
            _ => None,
        })
        .collect();
    assert_eq!(
        lost,
        [(1, Nanos::from_millis(50)), (2, Nanos::from_millis(50))]
    );
    assert_eq!(actions.last(), Some(&Action::Done));
}

#[test]
fn a_failed_answer_loses_its_own_conversation_only() {
    let turns = vec![
        turn(0, 0, chat("one"), false),
        turn(1, 10, chat("two"), true),
        turn(2, 30, chat("another"), false),
        turn(3, 10, chat("more"), true),
    ];
    let mut driver = Driver::new(with(vec![talk(0, turns)]), Nanos::ZERO).unwrap();
    sent(&mut driver, 0);
    end(&mut driver, 0, 50, None);
    let actions = driver.poll(Nanos::from_millis(50));
    let lost = |action: &Action| matches!(action, Action::NotOffered(order) if order.id.0 == 1);
    assert_eq!(actions.iter().filter(|action| lost(action)).count(), 1);
    assert!(!actions.contains(&Action::Done));
    let next = sent(&mut driver, 80);
    assert_eq!(next[0].id, RequestId(2));
    assert_eq!(next[0].intended, Nanos::from_millis(80));
    let PlannedPrompt::Chat(messages) = &next[0].body.prompt else {
        panic!("a chat")
    };
    assert_eq!(messages.len(), 1, "nothing of the lost conversation");
}

#[test]
fn no_turn_starts_after_the_horizon() {
    let turns = vec![turn(0, 0, body("a"), false), turn(1, 500, body("b"), false)];
    let mut driver = Driver::new(with(vec![talk(0, turns)]), Nanos::ZERO).unwrap();
    sent(&mut driver, 0);
    end(&mut driver, 0, 600, None);
    assert_eq!(driver.poll(Nanos::from_millis(600)), [Action::Done]);
    assert_eq!(sent(&mut driver, 1_200), []);
}

#[test]
fn sessions_that_contradict_themselves_are_refused() {
    let refuse = |session| Driver::new(with(vec![session]), Nanos::ZERO).unwrap_err();
    let text = talk(
        0,
        vec![turn(0, 0, chat("a"), false), turn(1, 0, body("b"), true)],
    );
    assert_eq!(refuse(text), PlanError::HistoryNeedsChat(RequestId(1)));
    let twice = talk(
        0,
        vec![turn(0, 0, body("a"), false), turn(0, 0, body("b"), false)],
    );
    assert_eq!(refuse(twice), PlanError::DuplicateId(RequestId(0)));
    let late = talk(1_001, vec![turn(0, 0, body("a"), false)]);
    assert!(matches!(refuse(late), PlanError::PastHorizon { .. }));
}

/// 30 ms to the first of two tokens, 10 ms to the second: a turn takes 40 ms, then 100 ms of
/// thought.
#[test]
fn sessions_run_in_virtual_time() {
    let turns = (0..4).map(|id| turn(id, 100, body("a"), false)).collect();
    let mut server = FixedServer::new(Nanos::from_millis(30), Nanos::from_millis(10), 4);
    let plan = with(vec![talk(5, turns)]);
    let options = SimOptions::default();
    let records = run_sim(plan, RunContext::default(), &mut server, &options).unwrap();
    let due: Vec<u64> = records
        .iter()
        .map(|record| record.row.intended_ns.0 / 1_000_000)
        .collect();
    assert_eq!(due, [5, 145, 285, 425]);
}

#[test]
fn a_conversation_over_a_socket_sends_its_history() {
    let server = ScriptServer::start(|asked| {
        assert_eq!(asked.path, "/v1/chat/completions");
        let mut expected = vec![json!({ "role": "user", "content": "one" })];
        if asked.number == 1 {
            expected.push(json!({ "role": "assistant", "content": "ab" }));
            expected.push(json!({ "role": "user", "content": "two" }));
        }
        assert_eq!(asked.body["messages"], json!(expected));
        assert_eq!(asked.body["ignore_eos"], true);
        let part = |text: &str| {
            format!("data: {{\"choices\":[{{\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
        };
        Answer {
            status: "200 OK",
            parts: vec![
                (0, part("a")),
                (1, part("b")),
                (2, "data: [DONE]\n\n".into()),
            ],
            end: End::Proper,
        }
    });
    let turns = vec![
        turn(0, 0, chat("one"), false),
        turn(1, 20, chat("two"), true),
    ];
    let mut records: Vec<Record> = Vec::new();
    run_plan_blocking(
        Plan {
            sessions: vec![talk(0, turns)],
            ..patient(vec![], vec![])
        },
        RunContext::default(),
        &server.endpoint(),
        Limits::default(),
        StopSignal::new(),
        |record| records.push(record),
    )
    .unwrap();
    assert_eq!(records.len(), 2);
    for record in &records {
        assert_eq!(
            record.row.status,
            RequestStatus::Ok,
            "{:?}",
            record.row.fail_message
        );
    }
    let (first, second) = (&records[0].row, &records[1].row);
    assert_eq!(
        second.intended_ns,
        first.closed_ns.unwrap() + Nanos::from_millis(20)
    );
}
