"""The type of a Redis client, for one server, Sentinel or a cluster; `connection.connect` makes one."""

from redis.asyncio import Redis, RedisCluster

AnyRedis = Redis | RedisCluster
