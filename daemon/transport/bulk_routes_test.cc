#include "daemon/transport/bulk_routes.h"

#include <gtest/gtest.h>

namespace ckptd::transport {
namespace {

TEST(BulkRoutesTest, TheHostOfAnAnswer) {
  EXPECT_EQ(HostOf("ipv4:10.0.0.7:9465"), "10.0.0.7");
  EXPECT_EQ(HostOf("ipv6:[::1]:9465"), "::1");
  EXPECT_EQ(HostOf("ipv6:%5Bfe80::1%5D:1"), "fe80::1");
  EXPECT_EQ(HostOf("ipv6:%5Bfe80::1%25eth0%5D:9465"), "") << "of one link";
  EXPECT_EQ(HostOf("ipv6:[fe80::1%eth0]:9465"), "");
  for (const char* none : {"", "ipv4:", "ipv4:1", "ipv6:::1:2", "ipv6:[::1:2", "unix:/run/x", "10.0.0.7:1"})
    EXPECT_EQ(HostOf(none), "") << none;
}

TEST(BulkRoutesTest, AsThePeerSaidLastUnlessItFailed) {
  BulkRoutes routes;
  EXPECT_FALSE(routes.Find("b", BulkWay::kTls, Nanos(0)));
  routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kTls, 4000);
  ASSERT_TRUE(routes.Find("b", BulkWay::kTls, Nanos(0)));
  EXPECT_EQ(routes.Find("b", BulkWay::kTls, Nanos(0))->host, "10.0.0.7");
  EXPECT_EQ(routes.Find("b", BulkWay::kTls, Nanos(0))->port, 4000);
  routes.Failed("b", BulkWay::kTls, Nanos(5));
  EXPECT_FALSE(routes.Find("b", BulkWay::kTls, Nanos(6)));
  EXPECT_FALSE(routes.Find("b", BulkWay::kTls, kRouteRests));
  EXPECT_TRUE(routes.Find("b", BulkWay::kTls, kRouteRests + Nanos(5)));
  EXPECT_FALSE(routes.Find("a", BulkWay::kTls, kRouteRests + Nanos(5)));
  for (const uint32_t none : {0U, 65536U, UINT32_MAX}) {
    routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kTls, 4000);
    routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kTls, none);
    EXPECT_FALSE(routes.Find("b", BulkWay::kTls, kRouteRests + Nanos(5))) << none;
  }
}

TEST(BulkRoutesTest, AWayThatKeepsFailingRestsLonger) {
  BulkRoutes routes;
  routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kTls, 4000);
  const auto rests = [&](Nanos now) {
    routes.Failed("b", BulkWay::kTls, now);
    routes.Failed("b", BulkWay::kTls, now + Nanos(1));  // another connection, of the same fault
    Nanos span = kRouteRests;
    while (!routes.Find("b", BulkWay::kTls, now + span)) span += kRouteRests;
    return span / kRouteRests;
  };
  Nanos now{5};
  for (const int minutes : {1, 2, 4, 8, 10, 10}) {
    EXPECT_EQ(rests(now), minutes);
    now += minutes * kRouteRests + std::chrono::seconds(3);
  }
  EXPECT_EQ(rests(now + kRouteRestsAtMost), 1) << "it went well for so long";
}

TEST(BulkRoutesTest, TheWaysToAPeerAreApart) {
  BulkRoutes routes;
  routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kTls, 4000);
  routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kUcx, 5000);
  routes.Failed("b", BulkWay::kTls, Nanos(5));
  EXPECT_FALSE(routes.Find("b", BulkWay::kTls, Nanos(6)));
  ASSERT_TRUE(routes.Find("b", BulkWay::kUcx, Nanos(6)));
  EXPECT_EQ(routes.Find("b", BulkWay::kUcx, Nanos(6))->port, 5000);
}

TEST(BulkRoutesTest, WhoeverIsNoPeerAnyMoreIsForgotten) {
  BulkRoutes routes;
  for (const char* peer : {"b", "c"}) {
    routes.Heard(peer, "ipv4:10.0.0.7:9465", BulkWay::kTls, 4000);
    routes.Heard(peer, "ipv4:10.0.0.7:9465", BulkWay::kUcx, 5000);
    routes.Failed(peer, BulkWay::kUcx, Nanos(0));
  }
  routes.ForgetOthers([](const std::string& name) { return name == "c"; });
  EXPECT_FALSE(routes.Find("b", BulkWay::kTls, Nanos(1)));
  EXPECT_TRUE(routes.Find("c", BulkWay::kTls, Nanos(1)));
  EXPECT_FALSE(routes.Find("c", BulkWay::kUcx, Nanos(1))) << "it rests still";
  routes.Heard("b", "ipv4:10.0.0.7:9465", BulkWay::kUcx, 5000);
  EXPECT_TRUE(routes.Find("b", BulkWay::kUcx, Nanos(1))) << "it is back, as new";
}

}  // namespace
}  // namespace ckptd::transport
