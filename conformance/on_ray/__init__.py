"""Campaigns on a Ray cluster: tasks with resources, lost tasks are run again, one report and one failure store on the driver.

options  the options for a cluster
crew     the campaign's side: submits tasks and receives answers; does not import Ray
driver   a separate process that talks to Ray; if Ray ends it, the campaign is told, and stays unfinished
node     the code that runs on a node
judges   the tasks of `ssmspec conform run`
"""
