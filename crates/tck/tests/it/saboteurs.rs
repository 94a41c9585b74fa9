//! Each saboteur is caught, and by the right case.

use std::collections::BTreeSet;
use std::sync::Arc;

use stockade_tck::{KitOptions, Report, cases, run, saboteurs};
use tokio::task::JoinSet;

async fn judge_saboteur(saboteur: saboteurs::Saboteur) -> (saboteurs::Saboteur, Report) {
    let only = saboteur.caught_by.iter().map(|name| (*name).to_owned()).collect();
    let engine = env!("CARGO_BIN_EXE_stockade-tck-engine").into();
    let named = vec![format!("saboteur:{}", saboteur.name)];
    let subject = saboteur.subject().with_engine_command(engine, named);
    let report = run(Arc::new(subject), &KitOptions { only, jobs: 2 }).await;
    (saboteur, report)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_saboteur_is_caught_by_the_cases_it_names() {
    let mut judging: JoinSet<_> =
        saboteurs::ALL_SABOTEURS.iter().copied().map(judge_saboteur).collect();
    let mut missed = Vec::new();
    while let Some(done) = judging.join_next().await {
        let (saboteur, report) = done.unwrap();
        println!("{}", report.table());
        let expected: BTreeSet<_> = saboteur.caught_by.iter().copied().collect();
        let failures: BTreeSet<_> = report.failures().into_iter().collect();
        if failures != expected {
            missed.push((saboteur.name, report.table()));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn there_are_enough_saboteurs_and_each_names_cases_that_exist() {
    assert!(saboteurs::ALL_SABOTEURS.len() >= 18);
    let known: BTreeSet<_> = cases::all().iter().map(|case| case.name).collect();
    let mut names = BTreeSet::new();
    for saboteur in saboteurs::ALL_SABOTEURS {
        assert!(names.insert(saboteur.name), "{} is there twice", saboteur.name);
        for case in saboteur.caught_by {
            assert!(known.contains(case), "{}: no case is called {case:?}", saboteur.name);
        }
    }
}
