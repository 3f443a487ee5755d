#include "daemon/snapshot/events.h"

#include <gtest/gtest.h>

#include "daemon/base/trace_test_util.h"

namespace ckptd::snapshot {
namespace {

TEST(Trace, NamesEachEventAndEffect) {
  ExpectEachIsNamed<Event>();
  ExpectEachIsNamed<Effect>();
}

TEST(Trace, TellsWhatThereIsToTell) {
  OpenGrant grant;
  grant.slot = {1, 2};
  grant.epoch = 7;
  grant.owner.process = 3;
  EXPECT_EQ(ToString(Effect(grant)), "OpenGrant 1/2 epoch 7 floor 0 a0 ticket 0 process 3");
  EXPECT_EQ(ToString(Event(Draining{true})), "Draining on");
}

}  // namespace
}  // namespace ckptd::snapshot
