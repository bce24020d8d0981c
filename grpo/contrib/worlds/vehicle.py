"""Car and board computer of BFCL.

    state   {"fuelLevel" gallons, "batteryVoltage", "engineState", "doorStatus": {door: "locked" or "unlocked"},
             "acTemperature" °C, "fanSpeed", "acMode", "humidityLevel", "headLightStatus", "parkingBrakeStatus",
             "parkingBrakeForce" N, "slopeAngle", "brakePedalStatus", "brakePedalForce" N, "cruiseStatus",
             "currentSpeed" km/h, "distanceToNextVehicle" m, "destination", "frontLeftTirePressure" psi, …}

If the documents leave something open, it is as the tasks' calls need it, or as simple as possible:

- The engine starts with fuel, all doors locked and the brake pedal pressed to the floor.
- A gallon lasts 20 miles, as in the task that asks for the least fuel. It is 3.78541 litres.
- Tires are healthy if each has 32 to 35 psi, because in a task they are not healthy at 32 and 30.
- Zip codes and roads come from the tasks. Between other cities one drives along these roads, and towns on the way
  are named. Only Silverpine to Oakendale has no length in the tasks, so it has a round length here.
- A brake that is engaged holds with 500 N, a pedal on the floor presses with 1000 N, and it is 30 °C outside.

https://github.com/ShishirPatil/gorilla, Apache-2.0 (the tasks)
"""

from __future__ import annotations

import heapq
from typing import Any

from grpo.agents.tools import ToolError
from grpo.environments.world import State, World

_DOORS = ("driver", "passenger", "rear_left", "rear_right")
_TIRES = ("frontLeftTirePressure", "frontRightTirePressure", "rearLeftTirePressure", "rearRightTirePressure")
_HEALTHY_PSI = (32.0, 35.0)
_TANK_GALLONS = 50.0
_MILES_PER_GALLON = 20.0
_LITRES_PER_GALLON = 3.78541
_KILOMETRES_PER_MILE = 1.60934
_PEDAL_NEWTONS = 1000.0
_BRAKE_NEWTONS = 500.0
_OUTSIDE_CELSIUS = 30.0
_TIRE_SHOP = "456 Oakwood Avenue, Rivermist, 83214"
_ZIP_CODES = {
    "Rivermist": "83214",
    "Stonebrook": "74532",
    "Silverpine": "62947",
    "Oakendale": "47329",
    "Crescent Hollow": "69238",
    "Autumnville": "51479",
    "San Francisco": "94016",
}
_ROADS = {
    ("94016", "83214"): 980.0,
    ("94016", "62947"): 780.0,
    ("83214", "74532"): 750.0,
    ("69238", "51479"): 630.0,
    ("62947", "47329"): 500.0,
}
"""Kilometres, in both directions."""


def _init_state(state: State) -> State:
    """Default: a car at rest with locked doors. The count of unlocked doors is derived."""
    defaults: State = {
        "fuelLevel": 0.0,
        "batteryVoltage": 12.6,
        "engineState": "stopped",
        "doorStatus": dict.fromkeys(_DOORS, "locked"),
        "acTemperature": 25.0,
        "fanSpeed": 50,
        "acMode": "auto",
        "humidityLevel": 50.0,
        "headLightStatus": "off",
        "parkingBrakeStatus": "released",
        "parkingBrakeForce": 0.0,
        "slopeAngle": 0.0,
        "brakePedalStatus": "released",
        "brakePedalForce": 0.0,
        "cruiseStatus": "inactive",
        "currentSpeed": 0.0,
        "distanceToNextVehicle": 50.0,
        "destination": "None",
        **dict.fromkeys(_TIRES, 32.0),
    }
    return {**defaults, **{name: value for name, value in state.items() if name != "remainingUnlockedDoors"}}


def _one_of(what: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ToolError(f"{what} '{value}' is unknown; use {', '.join(allowed)}.")


def _unlocked(state: State) -> int:
    return sum(status == "unlocked" for status in state["doorStatus"].values())


def startEngine(state: State, ignitionMode: str) -> tuple[State, Any]:
    """Start or stop the engine."""
    _one_of("Ignition mode", ignitionMode, ("START", "STOP"))
    if ignitionMode == "START":
        if _unlocked(state):
            raise ToolError(f"All doors must be locked before the engine starts; {_unlocked(state)} are not.")
        if state["brakePedalForce"] < _PEDAL_NEWTONS:
            raise ToolError("The brake pedal must be pressed to the floor before the engine starts.")
        if state["fuelLevel"] <= 0:
            raise ToolError("The fuel tank is empty.")
    state["engineState"] = "running" if ignitionMode == "START" else "stopped"
    return state, {name: state[name] for name in ("engineState", "fuelLevel", "batteryVoltage")}


def fillFuelTank(state: State, fuelAmount: float) -> tuple[State, Any]:
    """Add fuel, up to the size of the tank."""
    if fuelAmount < 0:
        raise ToolError("Fuel amount cannot be below 0.")
    level = round(state["fuelLevel"] + fuelAmount, 6)
    if level > _TANK_GALLONS:
        raise ToolError(f"The tank holds {_TANK_GALLONS} gallons; {state['fuelLevel']} are in it.")
    state["fuelLevel"] = level
    return state, {"fuelLevel": level}


def lockDoors(state: State, unlock: bool, door: list[str]) -> tuple[State, Any]:
    """Lock or unlock doors."""
    for name in door:
        _one_of("Door", name, _DOORS)
    status = "unlocked" if unlock else "locked"
    state["doorStatus"] |= dict.fromkeys(door, status)
    return state, {"lockStatus": status, "remainingUnlockedDoors": _unlocked(state)}


def adjustClimateControl(
    state: State, temperature: float, unit: str = "celsius", fanSpeed: int = 50, mode: str = "auto"
) -> tuple[State, Any]:
    """Set temperature, fan and mode; degrees Fahrenheit become Celsius."""
    _one_of("Unit", unit, ("celsius", "fahrenheit"))
    _one_of("Climate mode", mode, ("auto", "cool", "heat", "defrost"))
    if not 0 <= fanSpeed <= 100:
        raise ToolError("Fan speed must be between 0 and 100.")
    celsius = temperature if unit == "celsius" else round((temperature - 32) * 5 / 9, 2)
    state |= {"acTemperature": celsius, "fanSpeed": fanSpeed, "acMode": mode}
    return state, {"currentTemperature": celsius, "climateMode": mode, "humidityLevel": state["humidityLevel"]}


def get_outside_temperature_from_google(state: State) -> tuple[State, Any]:
    """Outside temperature."""
    return state, {"outsideTemperature": _OUTSIDE_CELSIUS}


def get_outside_temperature_from_weather_com(state: State) -> tuple[State, Any]:
    """Outside temperature, the same from another source."""
    return state, {"outsideTemperature": _OUTSIDE_CELSIUS}


def setHeadlights(state: State, mode: str) -> tuple[State, Any]:
    """Switch the headlights; mode auto is on."""
    _one_of("Headlight mode", mode, ("on", "off", "auto"))
    state["headLightStatus"] = "off" if mode == "off" else "on"
    return state, {"headlightStatus": state["headLightStatus"]}


def displayCarStatus(state: State, option: str) -> tuple[State, Any]:
    """Read one of the instruments."""
    panels = {
        "fuel": {"fuelLevel": "fuelLevel"},
        "battery": {"batteryVoltage": "batteryVoltage"},
        "doors": {"doorStatus": "doorStatus"},
        "climate": {
            "currentACTemperature": "acTemperature",
            "fanSpeed": "fanSpeed",
            "climateMode": "acMode",
            "humidityLevel": "humidityLevel",
        },
        "headlights": {"headlightStatus": "headLightStatus"},
        "parkingBrake": {
            "parkingBrakeStatus": "parkingBrakeStatus",
            "parkingBrakeForce": "parkingBrakeForce",
            "slopeAngle": "slopeAngle",
        },
        "brakePedal": {"brakePedalStatus": "brakePedalStatus", "brakePedalForce": "brakePedalForce"},
        "engine": {"engineState": "engineState"},
    }
    _one_of("Option", option, tuple(panels))
    return state, {"status": {shown: state[name] for shown, name in panels[option].items()}}


def activateParkingBrake(state: State, mode: str) -> tuple[State, Any]:
    """Engage or release the parking brake."""
    _one_of("Parking brake mode", mode, ("engage", "release"))
    engaged = mode == "engage"
    state["parkingBrakeStatus"] = "engaged" if engaged else "released"
    state["parkingBrakeForce"] = _BRAKE_NEWTONS if engaged else 0.0
    return state, {
        "parkingBrakeStatus": state["parkingBrakeStatus"],
        "_parkingBrakeForce": state["parkingBrakeForce"],
        "_slopeAngle": state["slopeAngle"],
    }


def pressBrakePedal(state: State, pedalPosition: float) -> tuple[State, Any]:
    """Press the brake pedal to a position."""
    if not 0 <= pedalPosition <= 1:
        raise ToolError("Pedal position must be between 0 and 1.")
    return _put_pedal(state, pedalPosition)


def releaseBrakePedal(state: State) -> tuple[State, Any]:
    """Release the brake pedal."""
    return _put_pedal(state, 0.0)


def _put_pedal(state: State, position: float) -> tuple[State, Any]:
    pedal = {
        "brakePedalStatus": "pressed" if position > 0 else "released",
        "brakePedalForce": _PEDAL_NEWTONS * position,
    }
    return {**state, **pedal}, pedal


def setCruiseControl(state: State, speed: float, activate: bool, distanceToNextVehicle: float) -> tuple[State, Any]:
    """Set the cruise control, in miles an hour with a distance, or switch it off."""
    if activate:
        if state["engineState"] != "running":
            raise ToolError("The engine must run before cruise control is set.")
        if not 0 <= speed <= 120 or speed % 5:
            raise ToolError("Speed must be between 0 and 120, and a multiple of 5.")
        state["currentSpeed"] = round(speed * _KILOMETRES_PER_MILE, 2)
        state["distanceToNextVehicle"] = distanceToNextVehicle
    state["cruiseStatus"] = "active" if activate else "inactive"
    return state, {name: state[name] for name in ("cruiseStatus", "currentSpeed", "distanceToNextVehicle")}


def get_current_speed(state: State) -> tuple[State, Any]:
    """Current speed."""
    return state, {"currentSpeed": state["currentSpeed"]}


def display_log(state: State, messages: list[str]) -> tuple[State, Any]:
    """Show messages."""
    return state, {"log": messages}


def estimate_drive_feasibility_by_mileage(state: State, distance: float) -> tuple[State, Any]:
    """Check that the fuel lasts for a distance in miles."""
    return state, {"canDrive": distance <= state["fuelLevel"] * _MILES_PER_GALLON}


def liter_to_gallon(state: State, liter: float) -> tuple[State, Any]:
    """Convert litres to gallons."""
    return state, {"gallon": liter / _LITRES_PER_GALLON}


def gallon_to_liter(state: State, gallon: float) -> tuple[State, Any]:
    """Convert gallons to litres."""
    return state, {"liter": gallon * _LITRES_PER_GALLON}


def get_zipcode_based_on_city(state: State, city: str) -> tuple[State, Any]:
    """Zip code of a city."""
    if city not in _ZIP_CODES:
        raise ToolError(f"City '{city}' not found; there are {', '.join(_ZIP_CODES)}.")
    return state, {"zipcode": _ZIP_CODES[city]}


def estimate_distance(state: State, cityA: str, cityB: str) -> tuple[State, Any]:
    """Length and cities of the shortest route."""
    ways: list[tuple[float, list[str]]] = [(0.0, [cityA])]
    done: set[str] = set()
    while ways:
        length, path = heapq.heappop(ways)
        if path[-1] == cityB and cityB in _ZIP_CODES.values():
            between = {"intermediaryCities": path[1:-1]} if path[1:-1] else {}
            return state, {"distance": length, **between}
        if path[-1] not in done:
            done.add(path[-1])
            for ends, road in _ROADS.items():
                if path[-1] in ends:
                    heapq.heappush(ways, (length + road, [*path, *(end for end in ends if end != path[-1])]))
    raise ToolError(f"No way from zip code '{cityA}' to '{cityB}' is known.")


def check_tire_pressure(state: State) -> tuple[State, Any]:
    """Pressure and health of the tires."""
    low, high = _HEALTHY_PSI
    pressures = {name: state[name] for name in _TIRES}
    healthy = all(low <= pressure <= high for pressure in pressures.values())
    return state, {"tirePressure": {**pressures, "healthy_tire_pressure": healthy, "car_info": {}}}


def find_nearest_tire_shop(state: State) -> tuple[State, Any]:
    """Nearest tire shop, as in the tasks."""
    return state, {"shopLocation": _TIRE_SHOP}


def set_navigation(state: State, destination: str) -> tuple[State, Any]:
    """Navigate to a destination."""
    return {**state, "destination": destination}, {"status": f"Navigating to {destination}"}


VEHICLE = World(
    state_key="VehicleControlAPI",
    init_state=_init_state,
    verify_results=True,
    functions={
        f.__name__: f
        for f in (
            startEngine, fillFuelTank, lockDoors, adjustClimateControl, get_outside_temperature_from_google,
            get_outside_temperature_from_weather_com, setHeadlights, displayCarStatus, activateParkingBrake,
            pressBrakePedal, releaseBrakePedal, setCruiseControl, get_current_speed, display_log,
            estimate_drive_feasibility_by_mileage, liter_to_gallon, gallon_to_liter, get_zipcode_based_on_city,
            estimate_distance, check_tire_pressure, find_nearest_tire_shop, set_navigation,
        )
    },
)  # fmt: skip
