#include "tools/ckptctl/formats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ckptd {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::StatusView View() {
  v1::StatusView view;
  v1::AgentStatus* agent = view.mutable_agent();
  agent->set_node("node-7");
  agent->set_version("0.1.0");
  agent->set_pid(42);
  agent->set_uptime_seconds(90);
  agent->set_sessions(1);
  agent->mutable_region()->set_dir("/run/ckptd/region");
  agent->mutable_region()->set_used_bytes(uint64_t{1} << 30);
  agent->mutable_region()->set_size_bytes(uint64_t{4} << 30);
  agent->mutable_storage()->set_root("/data");
  agent->mutable_storage()->set_io("io_uring, direct");
  v1::JobStatus* job = view.add_jobs();
  job->set_name("gpt");
  job->set_state(v1::JobStatus::RUN);
  job->set_attempt(3);
  job->set_world_size(2);
  job->set_watermark_attempt(3);
  job->set_watermark_step(120);
  job->set_durable_attempt(2);
  job->set_durable_step(100);
  v1::StepStatus* step = job->add_steps();
  step->set_attempt(3);
  step->set_step(120);
  step->set_age_seconds(4);
  v1::RankStatus* rank = job->add_ranks();
  rank->set_pid(4711);
  rank->set_connected(true);
  rank->set_ticket(v1::RankStatus::RUNNING);
  rank->set_position(121);
  rank->add_slots()->set_state(v1::SlotStatus::SEALED);
  rank->mutable_slots(0)->set_step(120);
  rank->mutable_slots(0)->set_persisted(true);
  return view;
}

TEST(FormatStatus, WhatATiredOperatorLooksFor) {
  std::string text = FormatStatus(View());
  EXPECT_THAT(text, HasSubstr("agent    node-7  ckptd 0.1.0  pid 42"));
  EXPECT_THAT(text, HasSubstr("1 trainer connected"));
  EXPECT_THAT(text, HasSubstr("1.0 GiB of 4.0 GiB used"));
  EXPECT_THAT(text, HasSubstr("job      gpt  run  attempt 3"));
  EXPECT_THAT(text, HasSubstr("captured  step 120, 4.0 s ago"));
  EXPECT_THAT(text, HasSubstr("durable   step 100 of attempt 2"));
  EXPECT_THAT(text, HasSubstr("sealed 120+disk"));
  EXPECT_THAT(text, Not(HasSubstr("error")));
}

TEST(FormatStatus, WhatWasDropped) {
  v1::StatusView view = View();
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("dropped")));
  v1::JobStatus* job = view.mutable_jobs(0);
  job->mutable_saves()->set_captured(7);
  job->mutable_saves()->set_dropped(3);
  job->mutable_ranks(0)->set_last_drop("NO_FREE_SLOT");
  job->mutable_ranks(0)->set_last_drop_step(130);
  EXPECT_THAT(FormatStatus(view), HasSubstr("  dropped   3 of 10 saves\n"));
  EXPECT_THAT(FormatStatus(view), HasSubstr("NO_FREE_SLOT at 130"));
}

TEST(FormatStatus, WhatOtherNodesHold) {
  v1::StatusView view = View();
  v1::JobStatus* job = view.mutable_jobs(0);
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("protected"))) << "without copies";
  job->set_copies(2);
  EXPECT_THAT(FormatStatus(view), HasSubstr("protected none yet  on 2 nodes\n"));
  job->set_protected_attempt(3);
  job->set_protected_step(120);
  EXPECT_THAT(FormatStatus(view), HasSubstr("protected step 120, 4.0 s ago  on 2 nodes\n"));
  job->set_protection_lost(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("on 2 nodes  a node with a part of it is lost\n"));
  job->set_protection_lost(false);
  job->set_copies(0);
  job->set_parity(1);
  EXPECT_THAT(FormatStatus(view), HasSubstr("step 120, 4.0 s ago  by parity: any 1 node of each group may be lost\n"));
}

TEST(FormatStatus, ARegionThatMayLeaveMemory) {
  v1::StatusView view = View();
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("swap")));
  view.mutable_agent()->mutable_region()->set_may_swap(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("free  may go to swap: run the node without\n"));
}

TEST(FormatStatus, Peers) {
  v1::StatusView view = View();
  v1::PeersStatus* peers = view.mutable_agent()->mutable_peers();
  peers->set_membership("static");
  peers->set_source_ok(true);
  peers->set_speaks(true);
  peers->set_self("node-7");
  peers->set_member_count(1);
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("peers"))) << "alone, and nobody said otherwise";
  peers->set_member_count(2);
  peers->set_generation(7);  // no registration of a list
  EXPECT_THAT(FormatStatus(view), HasSubstr("\npeers    2 nodes by static; this one is node-7\n"));
  peers->set_linked(true);
  peers->add_members()->set_name("node-7");
  peers->add_members()->mutable_link()->set_connected(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("this one is node-7, linked to 1\n"));
  v1::CertificateStatus* certificate = peers->add_certificates();
  certificate->set_seconds_left(31 * 86'400.0);
  EXPECT_THAT(FormatStatus(view), HasSubstr("this one is node-7, linked to 1\n"));
  certificate->set_seconds_left(12.5 * 86'400.0);
  EXPECT_THAT(FormatStatus(view), HasSubstr("linked to 1  a certificate ends in 12 days\n"));
  certificate->set_seconds_left(-1);
  EXPECT_THAT(FormatStatus(view), HasSubstr("linked to 1  a certificate is over\n"));
  peers->clear_certificates();
  peers->set_linked(false);
  peers->set_membership("etcd");
  EXPECT_THAT(FormatStatus(view), HasSubstr("2 nodes by etcd; this one is node-7, generation 7\n"));
  peers->set_speaks(false);
  peers->set_source_ok(false);
  peers->set_source_seconds(90);
  EXPECT_THAT(FormatStatus(view), HasSubstr("generation 7  may not write to others  not heard for 1m30s"));
}

TEST(FormatStatus, WhatIsHeldOfJobsThatHaveEnded) {
  v1::StatusView view = View();
  v1::HeldJob* held = view.mutable_agent()->mutable_peers()->add_held();
  held->set_job("bert");
  held->set_bytes(8192);
  for (uint32_t rank : {1, 3}) held->add_ranks(rank);
  held->set_step(120);
  held->set_heard_seconds(5);
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("held"))) << "it runs";
  held->set_heard_seconds(7200);
  held->set_ended(true);
  held->set_next_step("restart the job");
  EXPECT_THAT(FormatStatus(view),
              HasSubstr("held     8.0 KiB for other nodes, of job bert ranks 1 3, step 120, not known "
                        "to be on storage, not heard of for 2h00m\n           next: restart the job\n"));
  held->set_on_storage(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("step 120, on storage, not heard of"));
}

TEST(FormatStatus, RanksWithTensorsOnGpus) {
  v1::StatusView view = View();
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("gpu ")));
  v1::DevicesStatus* devices = view.mutable_jobs(0)->mutable_ranks(0)->mutable_devices();
  v1::DeviceStatus* gpu = devices->add_gpus();
  gpu->set_uuid("GPU-0011");
  gpu->set_path(v1::DeviceStatus::PULL);
  gpu->set_bytes(4096);
  gpu->set_copier_pid(4712);
  gpu->set_why("less loss\x1b[2J");
  EXPECT_THAT(FormatStatus(view), HasSubstr("  gpu       rank 0: not pinned yet\n"
                                            "            GPU-0011 pull by 4712, 4.0 KiB (less loss?[2J)\n"));
  devices->set_pinned_bytes(8192);
  devices->set_pin_seconds(2);
  devices->set_longest_step_seconds(0.5);
  gpu->set_samples(8);
  gpu->set_push_loss(0.0123);
  gpu->set_pull_loss(0.004);
  EXPECT_THAT(FormatStatus(view), HasSubstr("rank 0: 8.0 KiB pinned in 2.0 s, longest step meanwhile 500 ms\n"));
  EXPECT_THAT(FormatStatus(view), HasSubstr("costs 1.2 % of a step by push and 0.4 % by pull"));
  devices->set_pin_error("cuMemHostRegister: out of memory");
  EXPECT_THAT(FormatStatus(view), HasSubstr("rank 0: not pinned: cuMemHostRegister: out of memory\n"));
  devices->set_waits_to_pin(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("rank 0: waits for another trainer"));
}

TEST(FormatStatus, RanksThatAreToBeRescued) {
  v1::StatusView view = View();
  v1::RescueStatus* rescue = view.mutable_jobs(0)->mutable_ranks(0)->mutable_rescue();
  EXPECT_THAT(FormatStatus(view), Not(HasSubstr("rescue"))) << "it is not wanted";
  rescue->set_why("a step without a gate\x1b[2J");
  EXPECT_THAT(FormatStatus(view), HasSubstr("  rescue    rank 0: not ready: a step without a gate?[2J\n"));
  rescue->clear_why();
  rescue->set_armed(true);
  rescue->set_hold_seconds(1.5);
  EXPECT_THAT(FormatStatus(view), HasSubstr("  rescue    rank 0: ready, takes at most 1.5 s\n"));
}

TEST(FormatStatus, ASlotThatWasRescued) {
  v1::StatusView view = View();
  for (v1::SlotStatus& slot : *view.mutable_jobs(0)->mutable_ranks(0)->mutable_slots()) slot.set_rescued(true);
  EXPECT_THAT(FormatStatus(view), HasSubstr("sealed 120 rescued+disk"));
}

TEST(FormatStatus, TextOfOthersCannotSteerTheTerminal) {
  v1::StatusView view = View();
  view.mutable_jobs(0)->set_last_error("bad\x1b[2Jthing");
  EXPECT_THAT(FormatStatus(view), HasSubstr("bad?[2Jthing"));
}

TEST(FormatStatus, UnhealthyIsWhatTheOperatorMustMend) {
  v1::StatusView view = View();
  EXPECT_TRUE(IsHealthy(view));
  view.mutable_agent()->set_draining(true);
  EXPECT_TRUE(IsHealthy(view));
  for (auto state :
       {v1::StorageStatus::FULL, v1::StorageStatus::READ_ONLY, v1::StorageStatus::FAILING, v1::StorageStatus::HUNG}) {
    view.mutable_agent()->mutable_storage()->set_state(state);
    EXPECT_FALSE(IsHealthy(view));
  }
  view.mutable_agent()->mutable_storage()->set_state(v1::StorageStatus::OK);
  v1::Problem* problem = view.mutable_agent()->add_problems();
  problem->set_text("slot 1 held step 30");
  problem->set_next_step("ckptctl verify");
  EXPECT_FALSE(IsHealthy(view));
  EXPECT_THAT(FormatStatus(view), HasSubstr("problem  slot 1 held step 30\n           next: ckptctl verify\n"));
}

TEST(FormatList, OneLineAStep) {
  v1::ListResponse list;
  EXPECT_EQ(FormatList(list, 0), "no steps\n");
  list.add_errors("job gpt: what storage has of it cannot be read");
  EXPECT_EQ(FormatList(list, 0), "") << "nobody knows whether there are any";
  list.clear_errors();
  v1::SnapshotEntry* entry = list.add_snapshots();
  entry->set_job("gpt");
  entry->set_attempt(1);
  entry->set_step(100);
  entry->add_sources("region");
  entry->add_sources("storage");
  entry->set_durable(true);
  entry->set_on_lineage(true);
  entry->set_pinned(true);
  entry->set_world_size(2);
  entry->set_bytes(4096);
  entry->set_created_unix_ns(1000000000);
  EXPECT_EQ(FormatList(list, 6000000000),
            "JOB  STEP  ATTEMPT  STATE    SOURCE          SIZE     RANKS  AGE        PINNED\n"
            "gpt  100   1        durable  region+storage  4.0 KiB  2      5.0 s ago  yes\n");
  entry->set_on_lineage(false);
  EXPECT_THAT(FormatList(list, 0), HasSubstr("durable, left behind"));
}

TEST(FormatTensors, ShardsAndAliases) {
  v1::InspectResponse response;
  response.set_source("region");
  response.set_attempt(2);
  response.set_step(7);
  v1::TensorEntry* tensor = response.add_tensors();
  tensor->set_name("w");
  tensor->set_dtype("F32");
  for (uint64_t n : {2, 3}) tensor->add_shape(n);
  for (uint64_t n : {4, 3}) tensor->add_global_shape(n);
  for (uint64_t n : {2, 0}) tensor->add_global_offset(n);
  tensor->set_bytes(24);
  tensor->add_aliases("tied");
  std::string text = FormatTensors(response);
  EXPECT_THAT(text, HasSubstr("F32    [2, 3]  24     at [2, 0] of [4, 3]  tied"));
  EXPECT_THAT(text, HasSubstr("1 tensor, 24 B  (from region, step 7 of attempt 2)"));
}

TEST(FormatSentences, FlushDamageGc) {
  v1::FlushResponse flush;
  EXPECT_EQ(FormatFlush("gpt", flush), "job gpt: nothing is captured yet\n");
  flush.set_attempt(1);
  flush.set_step(5);
  flush.set_waiting_for("the commit");
  EXPECT_EQ(FormatFlush("gpt", flush), "job gpt: step 5 (attempt 1) is not durable yet; it waits for the commit\n");
  flush.set_durable(true);
  EXPECT_EQ(FormatFlush("gpt", flush), "job gpt: step 5 (attempt 1) is durable\n");
  v1::Damage damage;
  damage.set_source("storage");
  damage.set_file("f");
  damage.set_offset(4096);
  damage.set_bytes(4096);
  damage.set_reason("checksum");
  EXPECT_EQ(FormatDamage(damage), "storage: rank 0: f, bytes 4096 to 8191: checksum");
  v1::GcResponse gc;
  EXPECT_EQ(FormatGc(gc, true), "nothing to look at\n");
  gc.add_errors("job gpt: what storage has of it cannot be read");
  EXPECT_EQ(FormatGc(gc, true), "");
  gc.add_removed()->set_job("gpt");
  gc.mutable_removed(0)->set_step(9);
  gc.mutable_removed(0)->set_attempt(2);
  EXPECT_THAT(FormatGc(gc, true), HasSubstr("would go"));
  EXPECT_THAT(FormatGc(gc, false), HasSubstr("removed"));
  EXPECT_THAT(FormatGc(gc, false), HasSubstr("9.a2"));
}

v1::Plan PlanOfPairs() {
  v1::Plan plan;
  plan.set_scheme("mixed");
  plan.set_nodes(7);
  plan.set_copies(2);
  plan.set_slots(2);
  plan.set_lost(2);
  plan.set_always_survives(1);
  plan.set_survival(16.0 / 21);
  for (double survival : {1.0, 1.0, 16.0 / 21}) plan.add_survival_by_lost(survival);
  plan.set_memory_factor(4);
  plan.set_traffic_factor(1);
  plan.set_rebuild_factor(1);
  for (uint32_t members : {3, 2}) {
    plan.add_groups()->set_members(members);
    plan.mutable_groups(plan.groups_size() - 1)->set_count(4 - members);
  }
  return plan;
}

TEST(FormatPlan, WhatSurvivesAndWhatItCosts) {
  v1::Plan plan = PlanOfPairs();
  EXPECT_EQ(FormatPlan(plan),
            "mixed, 2 copies, 7 nodes in 1 group of 3 and 2 groups of 2\n\n"
            "NODES LOST  MEMORY SURVIVES  ELSE ONCE IN\n"
            "1           always           -\n"
            "2           76.1905 %        4.2\n\n"
            "EACH NODE  BYTES  TIMES WHAT IT SAVES\n"
            "memory     -      4 in 2 versions\n"
            "traffic    -      1 sent for a save, as much received\n"
            "rebuild    -      1 read from others when it is lost\n"
            "in bytes: with --bytes, what one node saves\n");
  plan.set_bytes(uint64_t{1} << 30);
  plan.set_memory_bytes_per_node(uint64_t{4} << 30);
  plan.set_traffic_bytes_per_save(uint64_t{1} << 30);
  plan.set_rebuild_bytes(uint64_t{1} << 30);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("memory     4.0 GiB  4 in 2 versions\n"
                                          "traffic    1.0 GiB  1 sent for a save, as much received\n"
                                          "rebuild    1.0 GiB  1 read from others when it is lost\n"));
}

TEST(FormatPlan, RacksAndRates) {
  v1::Plan plan = PlanOfPairs();
  EXPECT_THAT(FormatPlan(plan), Not(HasSubstr("racks")));
  plan.set_nodes_per_rack(2);
  plan.set_survives_one_rack(true);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("racks of 2 nodes: any one may fail\n"));
  plan.set_shared_racks(3);
  plan.set_survives_one_rack(false);
  EXPECT_THAT(FormatPlan(plan),
              HasSubstr("racks of 2 nodes: one that fails may take snapshots with it; 3 times one rack"));
  plan.set_node_loss_probability(0.001);
  plan.set_survival_at_probability(1 - 1e-7);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("each node with probability 0.001: > 99.9999 %, else once in 1e+07\n"));
}

TEST(FormatPlan, ManyLossesAreNotAllListed) {
  v1::Plan plan = PlanOfPairs();
  plan.set_lost(40);
  plan.set_survival(0);
  for (int lost = 3; lost <= 40; ++lost) plan.add_survival_by_lost(1e-9);
  const std::string text = FormatPlan(plan);
  EXPECT_THAT(text, HasSubstr("\n9           < 0.0001 %       1.0\n40          never            1.0\n"));
  for (int lost = 4; lost <= 40; ++lost) plan.set_survival_by_lost(lost, 0);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("\n3           < 0.0001 %       1.0\n40          never            1.0\n"));
}

TEST(FormatPlan, WhatIsNearlyCertainIsNotCertain) {
  v1::Plan plan = PlanOfPairs();
  plan.set_survival(1);  // a double has no digit left for what is lost
  EXPECT_THAT(FormatPlan(plan), HasSubstr("\n2           > 99.9999 %      > 1e+12\n"));
  plan.set_always_survives(2);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("\n2           always           -\n"));
  plan.set_node_loss_probability(1e-9);
  plan.set_survival_at_probability(1);
  EXPECT_THAT(FormatPlan(plan), HasSubstr("1e-09: > 99.9999 %, else once in > 1e+12\n"));
}

TEST(FormatTrace, ATimeLine) {
  v1::TraceResponse trace;
  trace.set_trace_id(0xabc);
  trace.set_step(7);
  trace.set_attempt(1);
  trace.add_events()->set_name("save.begin");
  EXPECT_THAT(FormatTrace(trace), HasSubstr("trace 0000000000000abc: step 7 of attempt 1\n"));
  EXPECT_THAT(FormatTrace(trace), HasSubstr("0.000000"));
}

}  // namespace
}  // namespace ckptd
