#include "daemon/transport/hello.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "daemon/base/errors.h"
#include "daemon/transport/link_message.h"

namespace ckptd::transport {
namespace {

using ::testing::HasSubstr;

const Card kHere{"ml", "here", "here-1", 5, 50};
const Card kThere{"ml", "there", "there-2", 6, 60};

ErrorCode AfterChange(const std::function<void(v1::HelloRequest*)>& change) {
  v1::HelloRequest hello = MakeHello(kThere, "here");
  change(&hello);
  return CodeOf(CheckHello(kHere, hello).status());
}

ErrorCode AfterAnswer(const std::function<void(v1::HelloResponse*)>& change) {
  v1::HelloResponse answer = MakeAnswer(kThere, 1);
  change(&answer);
  return CodeOf(CheckAnswer(kHere, "there", answer).status());
}

TEST(Hello, BothSidesLearnWhoTheOtherIs) {
  auto heard = CheckHello(kHere, MakeHello(kThere, "here"));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->peer, kThere);
  EXPECT_EQ(heard->protocol, kNewestProtocol);
  auto answered = CheckAnswer(kThere, "here", MakeAnswer(kHere, heard->protocol));
  ASSERT_TRUE(answered.ok()) << answered.status();
  EXPECT_EQ(answered->peer, kHere);
}

TEST(Hello, WhatDoesNotFitIsRefusedByTheOneThatIsCalled) {
  EXPECT_EQ(AfterChange([](auto*) {}), ErrorCode::OK);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_cluster("other"); }), ErrorCode::REFUSED);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_to("elsewhere"); }), ErrorCode::REFUSED);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_member(""); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_member(std::string(254, 'x')); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_agent(""); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_agent(std::string(301, 'x')); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_generation(0); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_incarnation(0); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->Clear(); }), ErrorCode::PROTOCOL);
}

TEST(Hello, TheCallerSaysItsFailureDomains) {
  Card racked = kThere;
  racked.domains = {{"rack", "r3"}, {"zone", "b"}};
  const auto heard = CheckHello(kHere, MakeHello(racked, "here"));
  ASSERT_TRUE(heard.ok()) << heard.status();
  EXPECT_EQ(heard->peer, racked);
  const std::string longest(kMaxDomainBytes, 'x');
  EXPECT_EQ(AfterChange([&](auto* h) { (*h->mutable_domains())[longest] = longest; }), ErrorCode::OK);
  EXPECT_EQ(AfterChange([&](auto* h) { (*h->mutable_domains())[longest + "x"] = "a"; }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([&](auto* h) { (*h->mutable_domains())["a"] = longest + "x"; }), ErrorCode::PROTOCOL);
  const auto many = [](size_t count) {
    return [count](auto* h) {
      for (size_t i = 0; i < count; ++i) (*h->mutable_domains())[std::to_string(i)] = "a";
    };
  };
  EXPECT_EQ(AfterChange(many(kMaxDomains)), ErrorCode::OK);
  EXPECT_EQ(AfterChange(many(kMaxDomains + 1)), ErrorCode::PROTOCOL);
}

TEST(Hello, TheHighestVersionThatBothSpeakOrNone) {
  auto newer = MakeHello(kThere, "here");
  newer.set_protocol_max(kNewestProtocol + 7);
  EXPECT_EQ(CheckHello(kHere, newer)->protocol, kNewestProtocol);
  EXPECT_EQ(AfterChange([](auto* h) {
              h->set_protocol_min(kNewestProtocol + 1);
              h->set_protocol_max(kNewestProtocol + 2);
            }),
            ErrorCode::NEWER_VERSION);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_protocol_min(0); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterChange([](auto* h) { h->set_protocol_max(0); }), ErrorCode::PROTOCOL);
}

TEST(Hello, WhatDoesNotFitIsRefusedByTheOneThatCalls) {
  EXPECT_EQ(AfterAnswer([](auto*) {}), ErrorCode::OK);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->set_cluster("other"); }), ErrorCode::REFUSED);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->set_member("elsewhere"); }), ErrorCode::REFUSED);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->set_protocol(0); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->set_protocol(kNewestProtocol + 1); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->set_generation(0); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(AfterAnswer([](auto* a) { a->Clear(); }), ErrorCode::PROTOCOL);
}

TEST(Hello, TheErrorNamesBothAndWhatToCorrect) {
  const absl::Status wrong = CheckHello(kHere, MakeHello({"dev", "there", "a", 1, 1}, "here")).status();
  EXPECT_THAT(wrong.message(), HasSubstr("node there is of cluster dev, node here of ml"));
  EXPECT_THAT(wrong.message(), HasSubstr("peers.cluster"));
}

ErrorCode OfState(const std::function<void(v1::State*)>& change) {
  v1::State state;
  state.set_job("gpt");
  state.set_coordinator("there-2");
  state.set_world_size(2);
  state.add_tickets()->set_rank(1);
  change(&state);
  return CodeOf(CheckReceived(LinkMessage(std::make_shared<v1::State>(state)), "there-2"));
}

ErrorCode OfReport(const std::function<void(v1::Report*)>& change) {
  v1::Report report;
  report.set_job("gpt");
  report.set_agent("there-2");
  report.add_ranks()->set_rank(1);
  change(&report);
  return CodeOf(CheckReceived(LinkMessage(std::make_shared<v1::Report>(report)), "there-2"));
}

TEST(CheckReceived, NobodySpeaksForOthersAndNumbersHaveBounds) {
  EXPECT_EQ(OfState([](auto*) {}), ErrorCode::OK);
  EXPECT_EQ(OfState([](auto* s) { s->set_job("../x"); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) { s->clear_job(); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) { s->set_coordinator("here-1"); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) { s->set_world_size(kMaxLinkRanks + 1); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) { s->add_tickets()->set_rank(kMaxLinkRanks); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) { s->mutable_decision()->add_ranks()->set_rank(0xFFFFFFFF); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfState([](auto* s) {
              for (size_t i = 0; i < kMaxLinkRanks; ++i) s->add_tickets();
            }),
            ErrorCode::PROTOCOL);
  EXPECT_EQ(OfReport([](auto*) {}), ErrorCode::OK);
  EXPECT_EQ(OfReport([](auto* r) { r->set_agent("here-1"); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfReport([](auto* r) { r->add_ranks()->set_rank(kMaxLinkRanks); }), ErrorCode::PROTOCOL);
  EXPECT_EQ(OfReport([](auto* r) { r->set_job(std::string(129, 'x')); }), ErrorCode::PROTOCOL);
}

}  // namespace
}  // namespace ckptd::transport
