#include "daemon/transport/link_message.h"

#include <gtest/gtest.h>

#include "proto/ckptd/v1/link.pb.h"

namespace ckptd::transport {
namespace {

StatePtr MakeState(uint64_t version) {
  auto state = std::make_shared<v1::State>();
  state->set_job("gpt");
  state->set_coordinator("a");
  state->set_version(version);
  for (uint32_t rank = 0; rank < 100; ++rank) state->mutable_decision()->add_ranks()->set_rank(rank);
  return state;
}

TEST(LinkMessage, ItsBytesAreALinkRequest) {
  const StatePtr state = MakeState(300);
  v1::LinkRequest request;
  ASSERT_TRUE(request.ParseFromString(*LinkMessage(state).wire()));
  ASSERT_EQ(request.body_case(), v1::LinkRequest::kState);
  EXPECT_EQ(request.state().SerializeAsString(), state->SerializeAsString());
  auto report = std::make_shared<v1::Report>();
  report->set_job("gpt");
  report->add_ranks()->set_rank(7);
  ASSERT_TRUE(request.ParseFromString(*LinkMessage(ReportPtr(report)).wire()));
  ASSERT_EQ(request.body_case(), v1::LinkRequest::kReport);
  EXPECT_EQ(request.report().SerializeAsString(), report->SerializeAsString());
}

TEST(LinkMessage, AnEmptyBodyIsOneToo) {
  v1::LinkRequest request;
  ASSERT_TRUE(request.ParseFromString(*LinkMessage(std::make_shared<const v1::Report>()).wire()));
  EXPECT_EQ(request.body_case(), v1::LinkRequest::kReport);
}

TEST(LinkMessage, CopiesShareTheirBytes) {
  const std::vector<LinkMessage> two(2, LinkMessage(MakeState(1)));
  EXPECT_EQ(two[0].wire(), two[1].wire());
}

TEST(RecentStates, TwoByTurnsAreSerialisedOnce) {
  RecentStates recent;
  const StatePtr whole = MakeState(1);
  const StatePtr brief = MakeState(1);
  const auto bytes = recent.Of(whole).wire();
  (void)recent.Of(brief);
  EXPECT_EQ(recent.Of(whole).wire(), bytes);
  (void)recent.Of(MakeState(2));
  (void)recent.Of(MakeState(3));
  EXPECT_NE(recent.Of(whole).wire(), bytes) << "no more than two are kept";
}

}  // namespace
}  // namespace ckptd::transport
