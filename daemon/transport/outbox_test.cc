#include "daemon/transport/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "daemon/base/errors.h"

namespace ckptd::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

LinkMessage State(const std::string& job, uint64_t floor, size_t padding = 0) {
  auto state = std::make_shared<v1::State>();
  state->set_job(job);
  state->set_floor(floor);
  state->set_coordinator(std::string(padding, 'x'));
  return LinkMessage(std::move(state));
}

LinkMessage Report(const std::string& job, uint64_t seq) {
  auto report = std::make_shared<v1::Report>();
  report->set_job(job);
  report->set_seq(seq);
  return LinkMessage(std::move(report));
}

std::vector<std::string> Drain(Outbox& box) {
  std::vector<std::string> all;
  while (auto message = box.Take()) {
    all.push_back(absl::StrCat(message->job(), " ", NameOf(message->kind()), " ",
                               message->state() ? message->state()->floor() : message->report()->seq()));
  }
  return all;
}

TEST(Outbox, ANewerMessageTakesThePlaceOfTheOneThatWaits) {
  Outbox box;
  for (uint64_t floor = 1; floor <= 1000; ++floor) EXPECT_TRUE(box.Put(State("a", floor)).ok());
  EXPECT_EQ(box.size(), 1U);
  EXPECT_EQ(box.replaced(), 999U);
  EXPECT_THAT(Drain(box), ElementsAre("a state 1000"));
  EXPECT_TRUE(box.empty());
  EXPECT_EQ(box.bytes(), 0U);
}

TEST(Outbox, KindsAndJobsDoNotReplaceEachOther) {
  Outbox box;
  ASSERT_TRUE(box.Put(State("a", 1)).ok() && box.Put(Report("a", 2)).ok() && box.Put(State("b", 3)).ok());
  EXPECT_THAT(Drain(box), ElementsAre("a state 1", "a report 2", "b state 3"));
}

TEST(Outbox, AJobThatSpeaksAllTheTimeKeepsNobodyWaiting) {
  Outbox box;
  ASSERT_TRUE(box.Put(State("loud", 1)).ok() && box.Put(State("quiet", 1)).ok());
  for (uint64_t floor = 2; floor < 10; ++floor) ASSERT_TRUE(box.Put(State("loud", floor)).ok());
  EXPECT_EQ(box.Take()->job(), "loud");
  ASSERT_TRUE(box.Put(State("loud", 10)).ok());
  EXPECT_EQ(box.Take()->job(), "quiet");
  EXPECT_THAT(Drain(box), ElementsAre("loud state 10"));
}

TEST(Outbox, WhatIsTakenIsNotReplacedAnyMore) {
  Outbox box;
  ASSERT_TRUE(box.Put(State("a", 1)).ok());
  EXPECT_EQ(box.Take()->state()->floor(), 1U);
  ASSERT_TRUE(box.Put(State("a", 2)).ok());
  EXPECT_THAT(Drain(box), ElementsAre("a state 2"));
  EXPECT_EQ(box.replaced(), 0U);
}

TEST(Outbox, CountsBytesAlsoWhenTheyAreReplaced) {
  Outbox box;
  ASSERT_TRUE(box.Put(State("a", 1, 1000)).ok());
  const size_t large = box.bytes();
  EXPECT_GT(large, 1000U);
  ASSERT_TRUE(box.Put(State("a", 1, 10)).ok());
  EXPECT_EQ(box.bytes(), State("a", 1, 10).bytes());
  ASSERT_TRUE(box.Put(State("a", 1, 1000)).ok());
  EXPECT_EQ(box.bytes(), large);
}

TEST(Outbox, IsBoundedInBytesAndWhatWaitedStays) {
  Outbox box({8, 4000});
  ASSERT_TRUE(box.Put(State("a", 1, 1500)).ok());
  ASSERT_TRUE(box.Put(State("b", 1, 1500)).ok());
  const absl::Status refused = box.Put(State("c", 1, 1500));
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_THAT(refused.message(), HasSubstr("job c"));
  EXPECT_FALSE(box.Put(State("a", 2, 3500)).ok());
  EXPECT_TRUE(box.Put(State("a", 3, 2000)).ok()) << "the bytes that it replaces do not count";
  EXPECT_THAT(Drain(box), ElementsAre("a state 3", "b state 1"));
}

TEST(Outbox, IsBoundedInMessages) {
  Outbox box({2, 1 << 20});
  ASSERT_TRUE(box.Put(State("a", 1)).ok() && box.Put(State("b", 1)).ok());
  EXPECT_EQ(CodeOf(box.Put(State("c", 1))), ErrorCode::REFUSED);
  EXPECT_TRUE(box.Put(State("b", 2)).ok());
  EXPECT_THAT(Drain(box), ElementsAre("a state 1", "b state 2"));
}

TEST(Outbox, RefusesWhatThePeerWouldRefuse) {
  Outbox box({8, size_t{1} << 40});
  const absl::Status refused = box.Put(State("a", 1, kMaxLinkMessage));
  EXPECT_EQ(CodeOf(refused), ErrorCode::REFUSED);
  EXPECT_TRUE(box.empty());
  EXPECT_TRUE(box.Put(State("a", 1, kMaxLinkMessage - 100)).ok());
}

}  // namespace
}  // namespace ckptd::transport
